"""A worker that gossips by turns with others; the turns are arguments, as JSON: [[number, rank], ...]."""

import json
import sys
from pathlib import Path

import numpy as np

from platoon_base import connect
from platoon_base.rules import GoSGD

FOLDER, RULE = Path(sys.argv[1]), GoSGD(probability=0.5, seed=5)
x = [np.ones((3, 4)), np.ones(5)]
seen = {}
worker = connect()


def turns(argument):
    return json.loads(sys.argv[argument])


def mine(turns):
    return [turn for turn, who in turns if who == worker.global_rank]


def synchronize(turn):
    for array in x:
        array += np.random.default_rng([turn, array.size]).standard_normal(array.shape)
    worker.progress(steps=1, epoch=1)
    worker.sync_params()
    seen.update({f"{turn} x {i}": array.copy() for i, array in enumerate(x)})
    with worker.center_params():
        seen.update({f"{turn} c {i}": array.copy() for i, array in enumerate(x)})


def take_turns(turns):
    for turn, who in turns:
        if who == worker.global_rank:
            synchronize(turn)
        worker.barrier(f"after turn {turn}")


def save(name=""):
    np.savez(FOLDER / f"{name}{worker.global_rank}.npz", **seen)
