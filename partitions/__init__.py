"""Heterogeneity settings: the training and test data of each silo.

The settings follow the experiments of SP-CACW (Kiselman & Levy, arXiv 2606.29322). Users
give their own data as a function (see ``own``), and name their own ``Setting`` by its import path,
``package.module:Class``. ``flower`` offers the same splits as Partitioners of flwr-datasets.
"""
