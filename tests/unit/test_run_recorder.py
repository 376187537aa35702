"""The course of a job from its snapshots, and the straggler in it: numbers by hand."""

import math

import numpy as np
import pytest

from platoon_base.cli.run_recorder import RunRecorder, Shares, StragglerWatch, rates
from platoon_base.cli.trackers.report import straggler_of, verdict
from platoon_base.controller.outcome import Snapshot
from platoon_base.coordination.roster import Participant, Phase
from platoon_base.shm.job_state import Progress
from platoon_base.shm.phases import BINS, COMPUTE, LOADING, PARTS, PHASES, PhaseTimes, bins_of

pytestmark = pytest.mark.base


def phase_times(steps=0, **per_step):
    """Return the times of a worker whose steps were all alike, but for seconds of each phase."""
    seconds = {name: per_step.get(name, 0.0) for name in PHASES}
    counts = np.zeros((len(PARTS), BINS), np.uint32)
    for row, part in enumerate(PARTS):
        counts[row, bins_of(seconds[part] + (seconds["collective"] if part == "sync" else 0.0))] = steps
    return PhaseTimes(tuple(steps * each for each in seconds.values()), counts)


def worker(steps, started=10.0, loss=math.nan, before=0, **per_step):
    progress = Progress(0, steps + before, 0, loss, 0.0, started, started, steps_before_start=before)
    return progress, phase_times(steps, **per_step)


def snapshot(*workers, gone=(), reported=None, saved=0):
    participants = [
        Participant(rank, True, Phase.LOST if rank in gone else Phase.TRAINING, device="cpu")
        for rank in range(len(workers))
    ]
    return Snapshot(
        participants,
        {rank: each[0] for rank, each in enumerate(workers)},
        reported or {},
        None,
        1.0,
        saved_checkpoints=saved,
        phases={rank: each[1] for rank, each in enumerate(workers)},
    )


def recorded(*snapshots):
    recorder = RunRecorder()
    for second, each in enumerate(snapshots):
        recorder.take(each, recorder.start + second)
    recorder.end()
    return recorder


def test_waits_in_collective_calls_are_those_beyond_the_shortest():
    """Worker 1 comes last to each call: its 10 ms are the exchange, and the other's 100 ms beyond them are waits."""
    first = worker(1, compute=0.0)
    early, late = dict(compute=0.05, collective=0.11), dict(compute=0.15, collective=0.01)
    lanes = recorded(
        snapshot(first, first),
        snapshot(worker(40, **early), worker(40, **late)),
        snapshot(worker(80, **early), worker(80, **late)),
    ).lanes
    assert lanes[0].shares == pytest.approx(Shares(4.0, 0.8, 8.0, 0.0, 0.0))
    assert lanes[1].shares == pytest.approx(Shares(12.0, 0.8, 0.0, 0.0, 0.0))


def test_a_rank_that_is_started_again_adds_to_its_time_and_steps():
    lanes = recorded(
        snapshot(worker(10, compute=1.0)),
        snapshot(worker(0, started=0.0, before=10)),
        snapshot(worker(5, started=30.0, before=10, compute=1.0, loading=1.0)),
    ).lanes
    assert lanes[0].shares == Shares(compute=15.0, loading=5.0)
    assert lanes[0].steps == 15
    assert lanes[0].counts.sum(axis=1).tolist() == [15] * len(PARTS)


def test_a_start_that_moves_with_another_hosts_clock_is_no_new_process():
    """The launcher corrects times of other hosts by the shortest way of a message so far."""
    lanes = recorded(
        snapshot(worker(10, started=10.0, compute=1.0)),
        snapshot(worker(20, started=9.998, compute=1.0)),
        snapshot(worker(30, started=9.997, compute=1.0)),
    ).lanes
    assert lanes[0].shares == Shares(compute=30.0)
    assert lanes[0].steps == 30


def test_points_values_and_checkpoints_stay_few():
    recorder = RunRecorder()
    for second in range(6000):
        made = worker(second + 1, loss=1 / (second + 1), compute=1.0)
        recorder.take(
            snapshot(made, reported={"val_loss": second, "who": "text"}, saved=second), recorder.start + second
        )
    recorder.end()
    points, values = recorder.lanes[0].points, recorder.values["val_loss"]
    assert len(points) <= 1300
    assert [points[0].at, points[-1].at] == pytest.approx([0.0, 5999.0])
    assert points[-1].shares.compute == 6000.0
    assert len(values) <= 1300
    assert values[-1].value == 5999
    assert len(recorder.checkpoints) <= 1300
    assert list(recorder.values) == ["val_loss"]
    assert all(rate == pytest.approx(1.0) for _, rate in rates(recorder.lanes[0]))


def slow_by(rank, phase, seconds, count=3):
    """Return the steps of workers of 10 ms, of which one has another time in a phase."""
    usual = {"compute": 0.01}
    return [{**usual, phase: seconds} if each == rank else usual for each in range(count)]


def watched(per_step, steps_a_second, seconds=12):
    """Let a watch see workers second by second; return what it finds, with the second."""
    watch, found = StragglerWatch(), []
    for second in range(1, seconds):
        workers = [worker(count * second, **each) for each, count in zip(per_step, steps_a_second)]
        straggler = watch.take(snapshot(*workers), float(second))
        if straggler is not None:
            found.append((second, straggler))
    return found


@pytest.mark.parametrize(("name", "phase"), [("compute", COMPUTE), ("loading", LOADING)])
def test_a_straggler_is_named_once_with_its_phase(name, phase):
    [(second, found)] = watched(slow_by(1, name, 0.2), [5, 5, 5])
    assert second <= 8
    assert (found.rank, found.phase) == (1, phase)
    assert found.seconds == pytest.approx(0.2, rel=0.1)
    assert "worker 1 is slower than the others in " in found.line
    assert ("loading: 200 ms" in found.line) == (phase == LOADING)


@pytest.mark.parametrize(
    ("per_step", "steps"),
    [
        (slow_by(1, "compute", 0.018), [40, 40, 40]),  # not twice as slow
        (slow_by(1, "waiting", 0.5), [2, 2, 2]),  # it waits for others
        (slow_by(1, "collective", 0.5), [2, 2, 2]),
        (slow_by(1, "validation", 0.5), [2, 2, 2]),
        (slow_by(0, "compute", 0.5, count=1), [2]),  # nothing to compare with
        ([{"compute": 0.0001}, {"compute": 0.0009}], [90, 90]),  # too short to matter
    ],
)
def test_what_is_no_straggler(per_step, steps):
    assert watched(per_step, steps) == []


def test_one_long_step_makes_no_straggler():
    """Such as one in which a worker saves."""
    watch, found, extra = StragglerWatch(), [], 0.0
    for second in range(1, 14):
        extra += 1.5 if second % 2 else 0.0
        workers = [worker(50 * second, compute=0.01) for _ in range(2)]
        times = workers[1][1]
        times.counts[0, bins_of(1.5)] += (second + 1) // 2
        times = times._replace(seconds=(times.seconds[0] + extra, *times.seconds[1:]))
        found.append(watch.take(snapshot(workers[0], (workers[1][0], times)), float(second)))
    assert found == [None] * 13


def test_the_verdict_names_the_share_and_the_straggler():
    first = worker(1)
    lanes = recorded(
        snapshot(first, first),
        snapshot(worker(100, compute=0.02, waiting=0.18), worker(100, compute=0.076, loading=0.124)),
    ).lanes
    texts = [each.text for each in verdict(lanes, None, [])]
    assert any(text.startswith("62 % of rank 1's time is waiting for batches") for text in texts)
    assert any(text.startswith("90 % of rank 0's time is waiting for other workers") for text in texts)
    assert any(text.startswith("Worker 1 is slower than the others in loading: 124 ms per step") for text in texts)
    assert straggler_of(lanes).waiting == pytest.approx(0.9)
