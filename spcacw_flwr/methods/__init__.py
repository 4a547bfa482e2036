"""What the target does with the answers: the seam of methods, and SP-CACW itself."""
