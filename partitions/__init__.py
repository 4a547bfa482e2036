"""Who holds what: the training and test data of each silo in a heterogeneity setting.

The settings follow the experiments of SP-CACW (Kiselman & Levy, arXiv 2606.29322). A user's own
data come as a function, see ``own``; a user's own ``Setting`` is named by its import path,
``package.module:Class``. ``flower`` has the same splits as Partitioners of flwr-datasets.
"""
