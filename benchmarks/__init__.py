"""Ratios measured side by side in one run, never timed assertions."""

import spcacw_flwr  # noqa: F401  before PyTorch, whose threads it tells to yield
