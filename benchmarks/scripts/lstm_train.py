"""Train the LSTM for a fixed number of mini-batches, and write down when each one ended.

    python lstm_train.py FOLDER                                       # the plain loop
    platoon launch -D cuda0 cuda1 lstm_train.py FOLDER --modes async sync

Started by benchmarks/lstm.py. What follows is the plain loop and, marked with (1) to (3), what a user adds to it.
"""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

from platoon_base import compat

compat.apply()  # what Theano needs on today's Python, under plain `python` too

import lstm_model  # noqa: E402
import theano  # noqa: E402

EVERY, ALPHA = 10, 0.5  # mini-batches from one synchronization to the next; EASGD's elasticity
WARM_UP = 20


def main(args):
    """Train args.batches mini-batches in each mode, in turn, args.repeats times."""
    began = time.monotonic()
    worker, rank, peers, synchronizers = None, int(args.rank), int(args.peers), {"plain": None}
    if args.modes != ["plain"]:
        from platoon_base import connect

        worker = connect()  # (1)
        rank, peers = worker.global_rank, worker.global_size
    params = lstm_model.parameters(args.vocabulary, args.units)
    step = lstm_model.compile_step(params, seed=rank)
    for mode in args.modes:
        if mode != "plain":
            synchronizers[mode] = {"async": asynchronous, "sync": synchronous}[mode](worker, params)  # (2)

    batches = itertools.cycle(lstm_model.reviews(64, args.vocabulary, seed=rank))
    for synchronize in synchronizers.values():
        train(step, batches, WARM_UP, synchronize)
    ready_after = time.monotonic() - began
    for repeat in range(args.repeats):
        for mode in args.modes:
            meet(Path(args.folder), f"{repeat}-{mode}", rank, peers)
            train(step, batches, EVERY, synchronizers[mode])  # until the workers have fallen into step
            stamps, cost, waits = train(step, batches, args.batches, synchronizers[mode])
            result = {"mode": mode, "repeat": repeat, "rank": rank, "stamps": stamps, "cost": cost, "waits": waits}
            write(args, result, ready_after=ready_after, on_gpu=on_gpu(params), center=center_of(worker))


def train(step, batches, number, synchronize):
    """Run the loop; returns when it began and each mini-batch ended, the last cost, and the seconds of each wait."""
    stamps, waits = [time.monotonic()], []
    for i in range(1, number + 1):
        cost = step(*next(batches))
        if synchronize is not None and i % EVERY == 0:
            before = time.monotonic()
            synchronize()  # (3)
            waits.append(time.monotonic() - before)
        stamps.append(time.monotonic())
    return stamps, float(cost), waits


def asynchronous(worker, params):
    """EASGD against a center, each worker when it is there."""
    from platoon_base import EASGD

    worker.init_shared_params(params, EASGD(ALPHA))
    return worker.sync_params


def synchronous(worker, params):
    """EASGD in step: all workers together, by an all-reduce."""
    from platoon_base.platoon_api import global_dynamics

    centers = [theano.shared(param.get_value(), f"center of {param.name}") for param in params]
    rule = global_dynamics.EASGD(worker)
    rule.make_rule(params, centers, ALPHA / worker.global_size)  # ALPHA from each at once would overshoot from 4 on
    return rule


def on_gpu(params):
    """Whether the parameters really are in the memory of a GPU."""
    import numpy as np

    return not any(isinstance(p.get_value(borrow=True, return_internal_type=True), np.ndarray) for p in params)


def center_of(worker):
    """Where the center lives: "host" or "device"; None without one."""
    if worker is None or not worker.advanced.shares:
        return None
    from platoon_base.centers.device_directory import DeviceDirectory
    from platoon_base.job.files import JobFiles
    from platoon_base.shm.segments import Segment

    with Segment.attach(JobFiles.read(os.environ["PLATOON_JOB"]).center) as segment:
        return "device" if DeviceDirectory.partitions_in(segment) else "host"


def meet(folder, name, rank, peers, timeout_s=300):
    """Wait until all processes of this measurement have come here; plain loops have nothing else to do so by."""
    (folder / f"at-{name}-{rank}").touch()
    deadline = time.monotonic() + timeout_s
    while len(list(folder.glob(f"at-{name}-*"))) < peers:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {peers} processes came to {name} within {timeout_s} s")
        time.sleep(0.002)


def write(args, result, **more):
    """Write what was measured, at once and as a whole: this process may not live to the end."""
    path = Path(args.folder, f"{result['repeat']}-{result['mode']}-{result['rank']}.part")
    path.write_text(json.dumps({**result, **more}))
    path.rename(path.with_suffix(".json"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where one JSON file for each mode, repeat and worker goes")
    parser.add_argument("--modes", nargs="+", default=["plain"], choices=["plain", "async", "sync"])
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=lstm_model.VOCABULARY)
    parser.add_argument("--units", type=int, default=lstm_model.UNITS)
    parser.add_argument("--rank", default=0, help="of a plain loop beside others")
    parser.add_argument("--peers", default=1, help="number of plain loops side by side")
    main(parser.parse_args())
