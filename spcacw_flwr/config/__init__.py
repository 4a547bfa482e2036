"""What a run is told: declared keys, tables of them, and registries of names."""
