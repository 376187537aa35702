"""What the exchange between the centers of two hosts costs their workers: steps with couriers over steps without.

Two launchers on this machine are the hosts, with a worker each. A step is a product of matrices of some milliseconds;
every tenth one is followed by a synchronization with the host's center. Jobs whose couriers exchange as often as the
default lets them take turns with jobs whose couriers do so once a day. On a machine with two cores the workers have one
each, so the couriers run in what the workers leave.

    python benchmarks/courier.py [--rounds 3]
"""

import statistics
import time

import harness
import numpy as np

GOAL, STEPS, EVERY = 1.01, 600, 10
SIZES = {"10 MB": 2_500_000, "100 MB": 25_000_000}


def work(given):
    from platoon_base import connect
    from platoon_base.rules import EASGD

    worker = connect()
    x = np.zeros(given.elements, np.float32)
    worker.init_shared_params([x], EASGD())
    a = np.random.default_rng(worker.global_rank).normal(size=(500, 500)).astype(np.float32)
    worker.barrier("begin")
    tens, syncs = [], []
    for _ in range(given.steps // EVERY):
        began = time.perf_counter()
        for _ in range(EVERY):
            a @ a
            worker.progress(steps=1)
        x[:1000] += 1e-3
        syncs.append(harness.seconds(worker.sync_params))
        tens.append((time.perf_counter() - began) / EVERY)
    found = {"step_ms": 1e3 * statistics.mean(tens[2:]), "worst_sync_ms": 1e3 * max(syncs[2:])}
    harness.give(worker.global_rank, found)
    worker.barrier("end")


def measure():
    options = harness.options(__doc__, rounds=3)
    rounds, steps = (1, 50) if options.quick else (options.rounds, STEPS)
    rows = []
    for size, elements in SIZES.items():

        def run(every_s, elements=elements):
            env = {"PLATOON_HOSTS_EVERY_S": str(every_s), "OPENBLAS_NUM_THREADS": "1"}
            return harness.job(__file__, {"elements": elements, "steps": steps}, env=env, hosts=(None, None))

        found = harness.interleaved({"without": lambda: run(86400.0), "with": lambda: run(0.2)}, rounds)
        of = {way: [each for job in jobs for each in job] for way, jobs in found.items()}
        steps_ms = {way: [each["step_ms"] for each in workers] for way, workers in of.items()}
        row = {"center": size, "step_ms": harness.median(steps_ms["with"])}
        row["over_without"] = harness.ratio(steps_ms["with"], steps_ms["without"])
        rows.append({**row, "worst_sync_ms": max(each["worst_sync_ms"] for each in of["with"])})
        harness.goal(f"steps with couriers over steps without, {size}", row["over_without"], GOAL, at_least=False)
    harness.table("Steps with couriers", rows)
    harness.save("courier", {"rows": rows, "rounds": rounds}, options)


if __name__ == "__main__":
    harness.main(measure, work)
