"""Gradients over streams: each node opens one to the target, and answers questions until the end.

``exchange.proto`` is the conversation, ``frames`` cuts it into frames,
:mod:`~spcacw_flwr.flower.stream.service` is the target's end of all streams,
``silo`` a node's end of one, ``asker`` what the loop
of training asks, and ``invitations`` how Flower brings nodes to the service.
All but the last run without Flower.
"""
