"""Validation accuracy of networks with BatchNormalization: N workers minus one process, by epochs.

    KERAS_BACKEND=torch python benchmarks/batch_normalization.py [--seeds 3] [--epochs 12]
    python benchmarks/batch_normalization.py --framework torch       (or lasagne, blocks)

Each run trains a small network with `BatchNormalization()` on the digits of scikit-learn. Beside the
accuracy that ``fit`` logs, the script has that with statistics refreshed by forward passes over the
training data. Its difference is due to the weights alone: N workers make N times fewer steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SCRIPTS = Path(__file__).parent / "scripts"
WAYS = [("async", 2), ("async", 4), ("sync", 2), ("sync", 4)]


def accuracies(mode: str, workers: int, seed: int, epochs: int, framework: str) -> np.ndarray:
    """Run one training; return the logged and the refreshed accuracies, shape (epochs, 2)."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        launched = ["-m", "platoon_base", "launch", "-n", str(workers), "-D", "cpu", "--log-dir", f"{folder}/logs"]
        launched = launched if workers > 1 else ["-m", "platoon_base", "run"]
        script = SCRIPTS / f"batch_normalization_{'train' if framework == 'keras' else 'loops'}.py"
        command = [sys.executable, *launched, str(script), mode, str(seed), str(epochs), str(out), framework]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return np.array(json.loads(out.read_text()))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--framework", choices=("keras", "torch", "lasagne", "blocks"), default="keras")
    options = parser.parse_args()
    shown = range(4, options.epochs)
    seeds = range(1, options.seeds + 1)
    plain = "plain" if options.framework == "keras" else "async"
    one = [accuracies(plain, 1, seed, options.epochs, options.framework) for seed in seeds]
    print(f"| | {' | '.join(f'epoch {epoch + 1}' for epoch in shown)} |")
    print(f"|{'---|' * (len(shown) + 1)}")
    for column, what in ((0, "logged"), (1, "refreshed")):
        values = np.mean([each[:, column] for each in one], axis=0)
        print(f"| one process, {what} | {' | '.join(f'{values[epoch]:.3f}' for epoch in shown)} |")
    for mode, workers in WAYS:
        found = [accuracies(mode, workers, seed, options.epochs, options.framework) for seed in seeds]
        differences = np.mean([many - single for many, single in zip(found, one)], axis=0)
        for column, what in ((0, "logged"), (1, "refreshed")):
            values = differences[:, column]
            print(
                f"| {mode}, {workers}, {what} | {' | '.join(f'{values[epoch]:+.3f}' for epoch in shown)} |", flush=True
            )


if __name__ == "__main__":
    main()
