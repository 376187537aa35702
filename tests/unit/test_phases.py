"""The clock of a worker's phases, against sums by hand on a clock that the test moves."""

import os
import threading

import numpy as np
import pytest

from platoon_base.shm.job_state import JobState
from platoon_base.shm.phases import (
    BINS,
    COLLECTIVE,
    LOADING,
    PARTS,
    PHASES,
    SYNC,
    VALIDATION,
    WAITING,
    PhaseClock,
    bins_of,
    edges,
    quantile,
)

pytestmark = pytest.mark.base


class Hand:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def timed():
    """Return a function that lets seconds pass, the clock, and one that reads the row, by default with all counts."""
    hand, job_state = Hand(), JobState(bytearray(JobState.size_bytes(2)), rows=2, create=True)
    row = job_state.row(1)
    clock = PhaseClock(row["phase_seconds"], row["phase_counts"], hand)

    def spend(seconds):
        hand.now += seconds

    def read(flush=True):
        if flush:
            clock.flush()
        return job_state.phases(1)

    return spend, clock, read


def seconds_of(times):
    return dict(zip(PHASES, times.seconds))


def test_time_goes_to_the_innermost_phase_and_the_rest_is_computation(timed):
    spend, clock, read = timed
    spend(50.0)  # before the first step
    clock.step(1)
    spend(1.0)
    with clock.phase(SYNC):
        spend(2.0)
        with clock.phase(WAITING):
            spend(4.0)
        spend(8.0)
    spend(16.0)
    with clock.phase(VALIDATION):
        spend(32.0)
        with clock.phase(COLLECTIVE):
            spend(64.0)
    spend(128.0)
    clock.step(1)
    assert seconds_of(read()) == {
        "compute": 145.0, "sync": 10.0, "waiting": 4.0, "collective": 64.0, "validation": 32.0, "loading": 0.0
    }  # fmt: skip


def test_batches_are_loaded_in_the_time_until_each_comes(timed):
    spend, clock, read = timed

    def batches():
        for number in range(3):
            spend(0.25)
            yield number
        spend(0.25)

    clock.step(1)
    for number in clock.loading(batches()):
        spend(1.0 + number)
        clock.step(1)
    clock.step(1)
    times = read()
    assert seconds_of(times)["loading"] == 1.0
    assert seconds_of(times)["compute"] == 6.0
    loading, compute = times.counts[PARTS.index("loading")], times.counts[PARTS.index("compute")]
    assert loading[bins_of(0.25)] == 4
    assert [int(compute[bins_of(s)]) for s in (1.0, 2.0, 3.0)] == [1, 1, 1]


def test_short_steps_are_counted_many_at_once_and_the_last_ones_at_the_end(timed):
    spend, clock, read = timed
    clock.step(1)
    took = [0.01 * 1.02**number for number in range(60)]
    for seconds in took:
        with clock.phase(LOADING):
            spend(seconds)
        spend(seconds / 3)
        clock.step(1)
    assert 0 < read(flush=False).counts[PARTS.index("loading")].sum() < 60, "counted each second"
    clock.close()
    counts = dict(zip(PARTS, read(flush=False).counts.tolist()))
    assert counts["loading"] == np.histogram(took, [0.0, *edges(), 1e9])[0].tolist()
    assert counts["compute"] == np.histogram([each / 3 for each in took], [0.0, *edges(), 1e9])[0].tolist()
    assert counts["waiting"] == [60] + [0] * (BINS - 1)


def test_a_count_that_a_signals_handler_ends_leaves_the_next_ones_as_they_are(timed, monkeypatch):
    spend, clock, read = timed
    clock.step(1)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    for place in "array", "diff":
        spend(4.0)
        with monkeypatch.context() as patch:
            patch.setattr(np, place, interrupted)
            with pytest.raises(KeyboardInterrupt):
                clock.step(1)
    for seconds in (0.25, 2.0):
        spend(seconds)
        clock.step(1)
    clock.close()
    expected = np.bincount(bins_of([0.25, 2.0]), minlength=BINS)
    assert read().counts[PARTS.index("compute")].tolist() == expected.tolist()


def test_steps_that_are_timed_ahead_count_once_in_each_bin(timed):
    spend, clock, read = timed
    clock.step_ahead(1)
    for seconds in (0.25, 2.0, 0.25):
        spend(seconds)
        clock.step_ahead(1)
    spend(4.0)
    clock.step(5)  # the first one, and these four
    in_thread(lambda: clock.step_ahead(3))
    spend(0.5)
    clock.step(1)
    expected = np.bincount(bins_of([0.25, 2.0, 0.25, 4.0, 0.5]), minlength=BINS)
    assert read().counts[PARTS.index("compute")].tolist() == expected.tolist()


def in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(30)


def test_calls_from_a_compiled_program_are_no_computation(timed):
    spend, clock, read = timed

    def call_of_program():
        with clock.call_of_program():
            spend(2.0)

    in_thread(call_of_program)  # before the first step: of nobody's time
    clock.step(1)
    spend(1.0)
    in_thread(call_of_program)  # the thread of the steps waits for the program
    with clock.phase(LOADING):
        spend(4.0)
    clock.step(1)
    assert seconds_of(read()) == {**dict.fromkeys(PHASES, 0.0), "compute": 1.0, "collective": 2.0, "loading": 4.0}
    with clock.call_of_program(), clock.phase(COLLECTIVE):  # in the thread of the steps, whose own phases count
        spend(8.0)
    clock.step(1)
    assert clock.seconds["collective"] == 10.0


def test_a_forked_child_is_not_timed(timed):
    spend, clock, read = timed
    clock.step(1)
    child = os.fork()
    if not child:
        try:
            with clock.phase(SYNC):
                spend(1.0)
            clock.step(1)
            os._exit(0 if clock.seconds == dict.fromkeys(PHASES, 0.0) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    spend(1.0)
    assert clock.seconds == seconds_of(read()) == {**dict.fromkeys(PHASES, 0.0), "compute": 1.0}


def test_a_closed_clock_leaves_the_memory_alone(timed):
    spend, clock, read = timed
    clock.step(1)
    spend(1.0)
    before = clock.enter(SYNC)
    clock.close()
    spend(1.0)
    clock.leave(before)
    clock.step(1)
    with clock.phase(SYNC):
        spend(1.0)
    assert seconds_of(read()) == {**dict.fromkeys(PHASES, 0.0), "compute": 1.0}


def test_bins_are_those_between_the_edges():
    durations = np.exp(np.linspace(np.log(1e-7), np.log(1e3), 5000))
    found = bins_of(durations).tolist()
    assert found == np.searchsorted(edges(), durations, side="right").tolist()
    assert bins_of(edges()).tolist() == list(range(1, BINS))
    assert bins_of([0.0, -1.0]).tolist() == [0, 0]


def test_quantiles_are_within_a_fifth():
    generator = np.random.default_rng(3)
    durations = np.exp(generator.normal(-5.0, 1.0, 20000))
    counts = np.bincount(bins_of(durations), minlength=BINS).tolist()
    for share in (0.5, 0.9, 0.99):
        assert quantile(counts, share) == pytest.approx(np.quantile(durations, share), rel=0.2)
    assert np.isnan(quantile([0] * BINS, 0.5))
    assert quantile([7] + [0] * (BINS - 1), 0.5) == 0.0


@pytest.mark.parametrize("steps", [3.0, np.int64(3), np.float32(3)])
def test_steps_of_any_number_type_are_counted(timed, steps):
    spend, clock, read = timed
    clock.step(1)
    spend(0.3)
    clock.step(steps)
    assert read().counts[0].tolist() == [3 * (index == bins_of(0.1)) for index in range(BINS)]


def test_a_number_of_steps_without_bound_does_not_end_a_training(timed):
    spend, clock, read = timed
    clock.step(1)
    for steps in 2**31, 2**31, -(2**40), 2**40:
        spend(1.0)
        clock.step(steps)
    assert read().counts.max() == 2**32 - 1
    assert seconds_of(read())["compute"] == pytest.approx(4.0)
