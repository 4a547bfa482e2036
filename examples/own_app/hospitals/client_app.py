"""A hospital's side."""

from spcacw_flwr import silo_app

from .task import load, network

app = silo_app(load=load, model=network)
