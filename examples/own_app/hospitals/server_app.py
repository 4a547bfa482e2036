"""The side of the hospital that wants a better model: silo 0."""

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from spcacw_flwr import SPCACW

from .task import HOSPITALS, network

app = ServerApp()


@app.main()
def main(grid, context):
    """Train, and leave the results."""
    strategy = SPCACW(num_silos=HOSPITALS, eta=0.05, output=context.run_config["output"])
    arrays = ArrayRecord(network().state_dict())
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=20)
    print(strategy.method.alpha, result.evaluate_metrics_clientapp[20]["accuracy"])
