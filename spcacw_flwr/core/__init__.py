"""Everything that runs on a bare PyTorch machine: configuration, silos, methods, artefacts."""
