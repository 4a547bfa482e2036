"""Experiments: they import everything and nothing imports them."""
