"""A worker that takes turns with others; the turns are arguments, as JSON: [[number, rank], ...]."""

import json
import sys

import numpy as np
from learned_progress import SHAPES, progress
from watching import center_of

from platoon_base import connect
from platoon_base.rules import CenterMomentum

x = [np.ones(shape, dtype) for shape, dtype in SHAPES]
seen = {}
worker = connect()


def turns(argument):
    return json.loads(sys.argv[argument])


def synchronize(turn):
    for array in x:
        array += progress(worker.global_rank, turn, array.shape, array.dtype)
    worker.progress(steps=1, epoch=1)
    worker.sync_params()
    seen.update({f"{turn} x {i}": array.copy() for i, array in enumerate(x)})
    with center_of(x, CenterMomentum()) as center:
        values, (m, s) = center.snapshot()
    for name, arrays in (("c", values), ("m", m), ("s", s)):
        seen.update({f"{turn} {name} {i}": array for i, array in enumerate(arrays)})


def take_turns(turns):
    for turn, who in turns:
        if who == worker.global_rank:
            synchronize(turn)
        worker.barrier(f"after turn {turn}")


def save(name=""):
    np.savez(f"{sys.argv[1]}/{name}{worker.global_rank}.npz", **seen)
