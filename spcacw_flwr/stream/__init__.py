"""Gradients over streams: each node opens one to the target, and answers questions until the end.

``exchange.proto`` is the conversation, :mod:`~spcacw_flwr.stream.frames` cuts it into frames,
:mod:`~spcacw_flwr.stream.service` is the target's end of all streams,
:mod:`~spcacw_flwr.stream.silo` a node's end of one, :mod:`~spcacw_flwr.stream.asker` what the loop
of training asks, and :mod:`~spcacw_flwr.stream.invitations` how Flower brings nodes to the service.
All but the last run without Flower.
"""
