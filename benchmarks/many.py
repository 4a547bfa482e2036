"""Ten thousand silos in one process: MNIST's 60,000 images, six to a silo, each turned a bit more.

    python -m benchmarks.many benchmarks/many.json --data-dir DIR

SP-CACW with biases and inner products in a sketch (Algorithm 1 is otherwise unchanged), one α at
the end. The JSON has the seconds of data, rounds and α, and the peak of the process's memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate


def main() -> None:
    """Run and write what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--silos", type=int, default=10_000)
    parser.add_argument("--sketch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    config = Config.from_keys(
        setting="mnist-rotate", data_dir=given.data_dir, silos=given.silos,
        mnist_rotate={"rotation_step": 360 / given.silos},
        samples_per_silo=60_000 // given.silos,
        sketch=given.sketch, epochs=given.epochs, update_every=given.epochs, compare_alone=False,
    )  # fmt: skip
    start = time.perf_counter()
    result = simulate(config)
    ends = [line["seconds"] for line in result.epochs]
    found = {
        "silos": given.silos,
        "parameters": sum(part.numel() for part in result.parameters.values()),
        "sketch": given.sketch,
        "rounds": result.epochs[-1]["round"],
        "seconds": round(time.perf_counter() - start, 1),
        "seconds_per_round": round(float(np.median(np.diff(ends[:-1]))), 2),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "silos_with_weight": int((result.alpha > 0).sum()),
        "alpha_of_target": round(float(result.alpha[0]), 4),
    }
    given.path.write_text(json.dumps(found, indent=2) + "\n")
    print(found)


if __name__ == "__main__":
    main()
