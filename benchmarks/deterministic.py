"""What `--deterministic` costs: steps per second of a loop of NumPy with the option, over those without.

Two workers on the CPU make steps of some ms and exchange 4 MB every 4 steps: by a rule that does not wait, without
turns, and by rank; by rounds; with averaged gradients at each step.
Runs with and without the option take turns, so that other jobs on the machine slow down both.

    python benchmarks/deterministic.py [--quick]
"""

import time

import harness
import numpy as np

RULES = ("EASGD(alpha=0.4)", "LocalSGD()", "gradients")
WAY = "--deterministic"


def work(given):
    from platoon_base import connect
    from platoon_base.rules import parse_rule

    worker = connect()
    w, a = np.zeros(1 << 20, np.float32), np.random.rand(200, 200).astype(np.float32)
    if given.rule != "gradients":
        worker.init_shared_params([w], parse_rule(given.rule, "the benchmark"))
    worker.barrier()
    began = time.perf_counter()
    for step in range(1, given.steps + 1):
        for _ in range(4):
            a = np.tanh(a @ a / 200)
        gradient = w * np.float32(0.01) + a[0, 0]
        if given.rule == "gradients":
            gradient = worker.all_reduce(gradient, "mean")
        w -= gradient
        worker.progress(steps=1)
        if given.rule != "gradients" and step % 4 == 0:
            worker.sync_params()
    seconds = time.perf_counter() - began
    worker.barrier()
    harness.give(worker.global_rank, given.steps / seconds)


def measure():
    options = harness.options(__doc__)
    steps, rounds = (8, 1) if options.quick else (200, 5)
    rows = []
    for rule in RULES:
        values = {"rule": rule, "steps": steps}
        calls = {w: lambda v=values, w=w: sum(harness.job(__file__, v, words=[w] * bool(w))) for w in ("", WAY)}
        found = harness.interleaved(calls, rounds)
        rows.append({"rule": rule, "way": WAY, "share of the steps/s": harness.ratio(found[WAY], found[""])})
        rows[-1] |= {"without": found[""], "with": found[WAY], "steps/s without": harness.median(found[""])}
    harness.table("Steps/s with --deterministic over those without", rows)
    harness.save("deterministic", {"results": rows}, options)


if __name__ == "__main__":
    harness.main(measure, work)
