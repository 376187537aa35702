"""`CenterMomentum`, the default rule, in jobs of real processes, bit by bit against NumPy.

Workers come by turns, leave, die, join late and resume.
"""

import json

import numpy as np
import pytest
from learned_progress import SHAPES, progress
from replaying import Replay
from scripts_here import script_path

from platoon_base import CenterMomentum
from tests.helpers.gossip_simulation import load

pytestmark = pytest.mark.base


class Momentum(Replay):
    """The center in NumPy, and which workers are there: their number counts."""

    def __init__(self, *living):
        super().__init__(CenterMomentum(), [np.ones(shape, dtype) for shape, dtype in SHAPES], 3)
        self.living = set(living)

    def join(self, rank):
        self.living.add(rank)
        self.take_over(rank)

    def take_turns(self, found, turns):
        """Synchronize, and require the bits that ``found``, by rank, holds of each turn."""
        for turn, rank in turns:
            self.sync(rank, [progress(rank, turn, *each) for each in SHAPES], len(self.living))
            for name, arrays in zip("xcms", (self.locals[rank], self.center, *self.states)):
                for i, expected in enumerate(arrays):
                    got = found[rank][f"{turn} {name} {i}"]
                    np.testing.assert_array_equal(got, expected, err_msg=f"turn {turn} of rank {rank}: {name} {i}")


SCRIPT = script_path("workers_in_turns")


def words(plan, *turns):
    return ["CenterMomentum", plan, *map(json.dumps, turns)]


@pytest.mark.parametrize("end", ["leaves", pytest.param("killed", marks=pytest.mark.promise)])
def test_the_number_of_workers_is_that_of_the_living(run_job, tmp_path, end):
    """Of three workers one leaves, or is killed; the momentum that it gave is kept."""
    of_three, of_two = [(0, 2), (1, 0), (2, 1), (3, 2), (4, 1)], [(5, 0), (6, 1), (7, 1), (8, 0)]
    outcome = run_job(SCRIPT, args=words(end, of_three, of_two), workers=3)
    ended = {exit.rank: exit.status for exit in outcome.result.exits}
    assert ended[0] == ended[1] == 0, outcome.logs
    replay, found = Momentum(0, 1, 2), load(tmp_path, 0, 1, 2)
    replay.take_turns(found, of_three)
    replay.living.remove(2)
    replay.take_turns(found, of_two)


def test_a_late_worker_begins_in_the_moved_frame(run_job, tmp_path):
    """If it began with another sum of moves, its first synchronization would carry it past the center."""
    of_two, of_three, after = [(0, 0), (1, 1), (2, 0), (3, 1)], [(4, 2), (5, 2)], [(6, 1), (7, 0)]
    run_job(SCRIPT, args=words("late", of_two, of_three, after)).require_success()
    replay, found = Momentum(0, 1), load(tmp_path, 0, 1, 2)
    replay.take_turns(found, of_two)
    assert np.abs(replay.states[1][1]).mean() > 0.01, "else there would be nothing to ride by"
    replay.join(2)
    replay.take_turns(found, of_three)
    replay.living.remove(2)
    replay.take_turns(found, after)


def test_a_resumed_job_goes_on_with_momentum_and_frame(platoon, tmp_path):
    """As if both workers had copied the center: they begin there, in the frame as it was, with the momentum it had."""
    before, after = [(0, 0), (1, 1), (2, 1), (3, 0)], [(4, 1), (5, 0), (6, 0), (7, 1)]
    for job, turns in (("first", before), ("second", after)):
        platoon("launch", "-n", 2, "--resume", "kept", SCRIPT, tmp_path, *words(job, turns)).require()
    replay = Momentum(0, 1)
    replay.take_turns(load(tmp_path, 0, 1, name="first"), before)
    for rank in (0, 1):
        replay.join(rank)
    replay.take_turns(load(tmp_path, 0, 1, name="second"), after)


def test_who_overwrites_the_center_ends_its_momentum_and_stays_in_its_frame(run_job, tmp_path):
    before, after = [(0, 0), (1, 1), (2, 1), (3, 0)], [(4, 1), (5, 0), (6, 0), (7, 1)]
    run_job(SCRIPT, args=words("overwritten", before, after)).require_success()
    replay, found = Momentum(0, 1), load(tmp_path, 0, 1)
    replay.take_turns(found, before)
    assert all((x != c).all() for x, c in zip(replay.locals[1], replay.center))
    replay.overwrite(1, replay.locals[1])
    replay.take_turns(found, after)


@pytest.mark.promise
def test_a_worker_that_resumes_a_job_alone_ends_the_momentum(platoon, tmp_path):
    """A late worker would be carried off by it otherwise. Where the center stays, the momentum does, too."""
    before = [(0, 0), (1, 1), (2, 1), (3, 0)]
    for workers in (2, 1):
        options = ["--resume", "kept", "--log-dir", "logs"]
        platoon("launch", "-n", workers, *options, SCRIPT, tmp_path, *words("alone", before)).require()


def test_the_average_follows_what_workers_do_to_the_center(run_job):
    """In the second training a goes half of the way to c in each worker's first synchronization: n = 1, k = 16, N = 2.

    c becomes 0.45 and then 0.6975.
    """
    outcome = run_job(script_path("worker_averaged_center"), 2).require_success()
    for rank in range(2):
        assert "would stop moving" in outcome.reported[f"half {rank}"]
        assert outcome.reported[f"average {rank}"] == pytest.approx(0.5 * 0.45 * 0.5 + 0.5 * 0.6975, rel=1e-12)
