"""The configuration of a run: declared keys, tables of keys, and registries of names."""
