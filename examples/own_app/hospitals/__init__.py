"""A Flower app of one's own: four hospitals, one of which wants a better model."""
