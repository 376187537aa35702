"""Train the LSTM for a fixed number of mini-batches, and write down when each one ended; see ../lstm.py.

The plain loop is `train`; what a user adds to it is marked with (1) to (3).
"""

import itertools
import sys
import time
from pathlib import Path

import harness

from platoon_base import compat

compat.apply()  # what Theano needs on today's Python, under plain `python` too
sys.path.append(str(harness.ROOT / "examples" / "lstm"))

import numpy as np  # noqa: E402
import theano  # noqa: E402
from lstm_network import CLASSES, compile_step, parameters  # noqa: E402

EVERY, ALPHA = 10, 0.5  # mini-batches from one synchronization to the next; EASGD's elasticity
WARM_UP, BATCH_SIZE = 20, 16
SHORTEST, LONGEST = 30, 99  # words in a review, drawn uniformly


def reviews(number, vocabulary, seed=0):
    """Make mini-batches of (words, mask, labels), each padded to its longest review, in a random order of their own."""
    rng = np.random.RandomState(seed)
    batches = []
    for _ in range(number):
        lengths = rng.randint(SHORTEST, LONGEST + 1, BATCH_SIZE)
        mask = (np.arange(lengths.max())[:, None] < lengths).astype("float32")
        words = rng.randint(0, vocabulary, mask.shape) * mask.astype("int64")
        batches.append((words, mask, rng.randint(0, CLASSES, BATCH_SIZE)))
    return batches


def main(given):
    began = time.monotonic()
    worker, rank, peers, synchronizers = None, given.rank, given.peers, {"plain": None}
    if given.modes != ["plain"]:
        from platoon_base import connect

        worker = connect()  # (1)
        rank, peers = worker.global_rank, worker.global_size
    params = parameters(given.vocabulary, given.units)
    step = compile_step(params, seed=rank)
    for mode in given.modes:
        if mode != "plain":
            synchronizers[mode] = synchronizer(mode, worker, params)  # (2)
    batches = itertools.cycle(reviews(64, given.vocabulary, seed=rank))
    for synchronize in synchronizers.values():
        train(step, batches, WARM_UP, synchronize)
    about = {"rank": rank, "ready_after": time.monotonic() - began, "on_gpu": on_gpu(params)}
    for repeat in range(given.repeats):
        for mode in given.modes:
            meet(Path(given.rows), f"{repeat}-{mode}", rank, peers)
            train(step, batches, EVERY, synchronizers[mode])  # until the workers have fallen into step
            stamps, cost, waits = train(step, batches, given.batches, synchronizers[mode])
            result = {"mode": mode, "repeat": repeat, "stamps": stamps, "cost": cost, "waits": waits}
            harness.write(Path(given.rows, f"{repeat}-{mode}-{rank}.json"), {**about, **result})


def train(step, batches, number, synchronize):
    """Run the loop; returns when it began and each mini-batch ended, the last cost, and the seconds of each wait."""
    stamps, waits = [time.monotonic()], []
    for i in range(1, number + 1):
        cost = step(*next(batches))
        if synchronize is not None and i % EVERY == 0:
            waits.append(harness.seconds(synchronize))  # (3)
        stamps.append(time.monotonic())
    return stamps, float(cost), waits


def synchronizer(mode, worker, params):
    """Return EASGD against a center, each worker when it is there, or in step by an all-reduce."""
    if mode == "async":
        from platoon_base import EASGD

        worker.init_shared_params(params, EASGD(ALPHA))
        return worker.sync_params
    from platoon_base.platoon_api import global_dynamics

    centers = [theano.shared(param.get_value(), f"center of {param.name}") for param in params]
    rule = global_dynamics.EASGD(worker)
    rule.make_rule(params, centers, ALPHA / worker.global_size)  # ALPHA from each at once would overshoot from 4 on
    return rule


def on_gpu(params):
    """Whether the parameters really are in the memory of a GPU."""
    return not any(isinstance(p.get_value(borrow=True, return_internal_type=True), np.ndarray) for p in params)


def meet(folder, name, rank, peers, timeout_s=300):
    """Wait until all processes of this measurement have come here; plain loops have nothing else to do so by."""
    (folder / f"at-{name}-{rank}").touch()
    deadline = time.monotonic() + timeout_s
    while len(list(folder.glob(f"at-{name}-*"))) < peers:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {peers} processes came to {name} within {timeout_s} s")
        time.sleep(0.002)


if __name__ == "__main__":
    main(harness.given())
