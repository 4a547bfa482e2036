"""Byzantine peers: what they can do to a target, and what guards it."""
