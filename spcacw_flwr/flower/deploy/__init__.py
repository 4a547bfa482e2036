"""A federation of real silos: certificates, keys, and Flower's processes on each host."""
