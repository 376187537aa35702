"""Steps of about 5 ms with the phase clock, and without it, in blocks that take turns; see ../phases.py."""

import statistics
import sys
import time

import numpy as np

from platoon_base import connect
from platoon_base.shm.phases import SYNC

STEP_S = 5e-3
BLOCKS, STEPS = (int(word) for word in sys.argv[1:])


class Nothing:
    """A phase that is not timed."""

    def __enter__(self):
        pass

    def __exit__(self, *error):
        pass


def switch(clock, on):
    """Let the clock do its work, or nothing."""
    for name in ("enter", "leave", "step", "phase", "loading"):
        clock.__dict__.pop(name, None)
    if not on:
        nothing = Nothing()
        clock.enter, clock.leave, clock.step = (lambda phase: -1), (lambda before: None), (lambda steps: None)
        clock.phase, clock.loading = (lambda phase: nothing), iter


def compute(square, rounds):
    """Multiply matrices."""
    for _ in range(rounds):
        square @ square


def rounds_of_a_step(square):
    """Return how many products take a step's time."""
    began, rounds = time.perf_counter(), 0
    while time.perf_counter() - began < 0.5:
        compute(square, 1)
        rounds += 1
    return max(1, round(rounds * STEP_S / 0.5))


def block(worker, square, rounds, gradient):
    """Make a block of steps; return seconds per step."""
    worker.barrier()
    began = time.perf_counter()
    for _ in worker.loading(range(STEPS)):
        compute(square, rounds)
        worker.all_reduce(gradient, "mean", dest=gradient)
        worker.progress(steps=1, loss=0.5)
    return (time.perf_counter() - began) / STEPS


def main():
    """Print medians over the blocks."""
    with connect() as worker:
        square, gradient = np.ones((160, 160), np.float32), np.ones(10_000, np.float32)
        rounds = worker.gather(rounds_of_a_step(square))[0]
        clock = worker.advanced.clock
        block(worker, square, rounds, gradient)
        times = {True: [], False: []}
        for number in range(2 * BLOCKS):
            on = number % 4 in (0, 3)  # on off off on, so that a drift counts for both
            switch(clock, on)
            times[on].append(block(worker, square, rounds, gradient))
        switch(clock, True)
        began = time.perf_counter()
        for _ in clock.loading(range(20_000)):  # the calls of a step: a batch, an all-reduce, a count
            clock.leave(clock.enter(SYNC))
            clock.step(1)
        calls_s = (time.perf_counter() - began) / 20_000
        if worker.global_rank == 0:
            on, off = (statistics.median(times[each]) for each in (True, False))
            ratios = [a / b for a, b in zip(times[True], times[False])]
            print(f"step without the clock {1e3 * off:.3f} ms, with it {1e3 * on:.3f} ms")
            print(f"ratio with/without: median of {BLOCKS} pairs {statistics.median(ratios):.4f}")
            print(f"the clock's calls of a step alone: {1e6 * calls_s:.2f} us, {calls_s / STEP_S:.2%} of 5 ms")


main()
