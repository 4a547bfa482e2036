"""The server app of the hospital that wants a better model: silo 0."""

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from spcacw_flwr import SPCACW

from .task import HOSPITALS, network

app = ServerApp()


@app.main()
def main(grid, context):
    """Train, and write accuracy, α and report.html into the directory ``output``."""
    strategy = SPCACW(num_silos=HOSPITALS, eta=0.05, output=context.run_config["output"])
    arrays = ArrayRecord(network().state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=60)
