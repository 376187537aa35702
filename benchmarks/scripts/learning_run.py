"""What the scripts of benchmarks/learning.py share: their options, and the file that rank 0 writes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from learning_methods import METHODS
from learning_tasks import TASKS

BYTES = 4  # of a float32


def parse(description: str) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="for the results, as JSON")
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--slow", type=int, help="rank of a worker that takes twice as long for each mini-batch")
    parser.add_argument("--pause-ms", type=float, default=0.0, help="by which each mini-batch of Lasagne takes longer")
    return parser.parse_args()


def write(args: argparse.Namespace, worker: Any, version: str, parameters: int, points: list, ends: int) -> None:
    """Write what a run gave, on rank 0; all ranks call it.

    Parameters
    ----------
    args : argparse.Namespace
    worker : Worker
    version : str
        Of the framework.
    parameters : int
        How many numbers the model has.
    points : list of (steps, seconds, value)
        Of this worker.
    ends : int
        How many times a rule synchronizes and then counts its period anew.
    """
    by_rank = worker.gather(points[-1][0])
    if worker.global_rank == 0:
        exchanges = [METHODS[args.method].exchanges(count, ends) for count in by_rank]
        result = {
            "version": version,
            "parameters": parameters,
            "steps_by_rank": by_rank,
            "bytes_sent": sum(exchanges) * METHODS[args.method].copies * 2 * BYTES * parameters,  # there and back
            "curve": points,
        }
        Path(args.file).write_text(json.dumps(result))
