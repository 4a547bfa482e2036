"""What runs a method: the loop, the gate, and what a run leaves behind."""
