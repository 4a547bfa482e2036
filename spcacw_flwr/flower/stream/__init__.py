"""Gradients over streams: each node opens one to the target, and answers questions until the end.

``frames`` cuts their messages into frames, :mod:`~spcacw_flwr.flower.stream.service` is the
target's end of all streams, ``silo`` a node's end of one, ``asker`` what the loop of training asks,
and ``invitations`` how Flower brings nodes to the service.
"""
