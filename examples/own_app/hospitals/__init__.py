"""A Flower app of your own: four hospitals, and one of them wants a better model."""
