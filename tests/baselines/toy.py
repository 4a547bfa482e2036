"""Four silos with known answers: gradients at one point, and models of their own."""

G = [[1.0, -0.5, 0.25], [0.9, -0.4, 0.35], [0.2, 0.8, -0.6], [-1.0, 0.4, 0.1]]
W = [[0.10, -0.20, 0.30], [0.12, -0.18, 0.28], [0.50, 0.10, 0.0], [-0.40, 0.60, -0.10]]
