"""What `platoon launch --report` costs: steps of 5 ms on two workers with the phase clock, and without it.

Blocks with and without it take turns in one job. The launcher's part, a snapshot a second, is timed by itself.

    python benchmarks/phases.py [--quick]
"""

import contextlib
import tempfile
import time

import harness
import numpy as np

WORKERS, STEP_S = 64, 5e-3


def snapshots(count):
    from platoon_base.controller.outcome import Snapshot
    from platoon_base.coordination.roster import Participant, Phase
    from platoon_base.shm.job_state import JobState

    job_state = JobState(bytearray(JobState.size_bytes(WORKERS)), WORKERS, create=True)
    participants = [Participant(rank, True, Phase.TRAINING, device="cpu") for rank in range(WORKERS)]
    for number in range(1, count + 1):
        job_state.table["started"], job_state.table["steps"] = 1.0, 100 * number
        job_state.table["phase_seconds"] = job_state.table["phase_counts"] = number
        progress, phases = ({r: of(r) for r in range(WORKERS)} for of in (job_state.progress, job_state.phases))
        yield Snapshot(participants, progress, {"loss": float(number)}, None, float(number), phases=phases)


def switch(clock, on):
    """Let the clock do its work, or nothing."""
    for name in ("enter", "leave", "step", "phase", "loading"):
        clock.__dict__.pop(name, None)
    if not on:
        nothing = contextlib.nullcontext()
        clock.enter, clock.leave, clock.step = (lambda phase: -1), (lambda before: None), (lambda steps: None)
        clock.phase, clock.loading = (lambda phase: nothing), iter


def work(given):
    from platoon_base import connect
    from platoon_base.shm.phases import SYNC

    with connect() as worker:
        square, gradient = np.ones((160, 160), np.float32), np.ones(10_000, np.float32)
        products = round(STEP_S / harness.seconds(lambda: square @ square, 500))
        products, clock = max(1, worker.gather(products)[0]), worker.advanced.clock

        def block():
            worker.barrier()
            began = time.perf_counter()
            for _ in worker.loading(range(given.steps)):
                for _ in range(products):
                    square @ square
                worker.all_reduce(gradient, "mean", dest=gradient)
                worker.progress(steps=1, loss=0.5)
            return (time.perf_counter() - began) / given.steps

        def calls():  # of a step: a batch, an all-reduce, a count
            for _ in clock.loading(range(20_000)):
                clock.leave(clock.enter(SYNC))
                clock.step(1)

        block()
        times = {True: [], False: []}
        for number in range(2 * given.blocks):
            on = number % 4 in (0, 3)  # on off off on, so that a drift counts for both
            switch(clock, on)
            times[on].append(block())
        switch(clock, True)
        found = {"with": times[True], "without": times[False], "calls_s": harness.seconds(calls) / 20_000}
        harness.give(worker.global_rank, found)


def measure():
    options = harness.options(__doc__)
    values = {"blocks": 4, "steps": 50} if options.quick else {"blocks": 30, "steps": 200}
    with tempfile.TemporaryDirectory() as folder:
        found = harness.job(__file__, values, words=["--report", f"{folder}/run.html"])[0]
    rows = harness.compared({way: found[way] for way in ("without", "with")}, "without")
    harness.table("Steps without the phase clock and with it", rows)
    from platoon_base.cli.run_recorder import RunRecorder, StragglerWatch

    recorder, watch, spent = RunRecorder(), StragglerWatch(), 0.0
    for number, snapshot in enumerate(snapshots(100)):
        for each in (recorder, watch):
            spent += harness.seconds(lambda e=each, n=number, s=snapshot: e.take(s, recorder.start + n))
    harness.goal("the clock's calls in a step of 5 ms, share", found["calls_s"] / STEP_S, 0.01, at_least=False)
    harness.goal(f"the launcher, {WORKERS} workers, share of a core", spent / 100, 0.005, at_least=False)
    harness.save("phases", {"results": rows, "calls_s": found["calls_s"], "launcher": spent / 100}, options)


if __name__ == "__main__":
    harness.main(measure, work)
