"""What silos are and compute: the protocol, their data, models, gradients and privacy."""
