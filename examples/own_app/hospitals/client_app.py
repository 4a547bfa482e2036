"""The app that runs at each hospital."""

from spcacw_flwr import silo_app

from .task import load, network

app = silo_app(load=load, model=network)
