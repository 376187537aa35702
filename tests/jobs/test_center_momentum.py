"""`CenterMomentum`, the default rule, in jobs of real processes, bit by bit against NumPy.

Workers come by turns, leave, die, join late and resume.
"""

import json

import numpy as np
import pytest
from learned_progress import SHAPES, progress
from scripts_here import script_path

pytestmark = pytest.mark.base


class Replay:
    """The equations of the docstring of `CenterMomentum`, on whole arrays."""

    def __init__(self, ranks):
        self.c = [np.ones(shape, dtype) for shape, dtype in SHAPES]
        self.m, self.s = ([np.zeros(shape, dtype) for shape, dtype in SHAPES] for _ in range(2))
        self.workers = {}
        for rank in ranks:
            self.join(rank)

    def join(self, rank):
        """Begin at the center, and in the frame as it is now."""
        self.workers[rank] = [c.copy() for c in self.c], [s.copy() for s in self.s]

    def overwrite(self, rank):
        """Put a worker's values, each another than the center's, in its place."""
        self.c = [x.copy() for x in self.workers[rank][0]]
        self.m = [np.zeros_like(m) for m in self.m]
        self.join(rank)

    def take_turns(self, found, turns, living):
        """Synchronize, and require the bits that ``found``, by rank, holds of each turn."""
        for turn, rank in turns:
            self.synchronize(rank, turn, living)
            for name, arrays in (("x", self.workers[rank][0]), ("c", self.c), ("m", self.m), ("s", self.s)):
                for i, expected in enumerate(arrays):
                    got = found[rank][f"{turn} {name} {i}"]
                    np.testing.assert_array_equal(got, expected, err_msg=f"turn {turn} of rank {rank}: {name} {i}")

    def synchronize(self, rank, turn, living):
        local, frame = self.workers[rank]
        for i, (shape, dtype) in enumerate(SHAPES):
            number = np.dtype(dtype).type
            alpha, b, gain = number(0.9 / living), number(0.9 ** (1 / living)), number(1.35 * living**0.5)
            x = local[i] + progress(rank, turn, shape, dtype)
            x = x + (self.s[i] - frame[i])
            d = alpha * (x - self.c[i])
            self.m[i] = b * self.m[i] + (number(1) - b) * d
            j = gain * self.m[i]
            local[i], self.c[i], self.s[i] = x + (j - d), self.c[i] + (j + d), self.s[i] + j
            frame[i] = self.s[i].copy()


def load(folder, *ranks, name=""):
    return {rank: np.load(folder / f"{name}{rank}.npz") for rank in ranks}


SCRIPT = script_path("workers_in_turns")


def words(plan, *turns):
    """Return the arguments of the script."""
    return ["CenterMomentum", plan, *map(json.dumps, turns)]


@pytest.mark.parametrize("end", ["leaves", pytest.param("killed", marks=pytest.mark.promise)])
def test_the_number_of_workers_is_that_of_the_living(run_job, tmp_path, end):
    """Of three workers one leaves, or is killed; the momentum that it gave is kept."""
    of_three, of_two = [(0, 2), (1, 0), (2, 1), (3, 2), (4, 1)], [(5, 0), (6, 1), (7, 1), (8, 0)]
    outcome = run_job(SCRIPT, args=words(end, of_three, of_two), workers=3)
    ended = {exit.rank: exit.status for exit in outcome.result.exits}
    assert ended[0] == ended[1] == 0, outcome.logs
    replay, found = Replay([0, 1, 2]), load(tmp_path, 0, 1, 2)
    replay.take_turns(found, of_three, living=3)
    replay.take_turns(found, of_two, living=2)


def test_a_late_worker_begins_in_the_moved_frame(run_job, tmp_path):
    """If it began with another sum of moves, its first synchronization would carry it past the center."""
    of_two, of_three, after = [(0, 0), (1, 1), (2, 0), (3, 1)], [(4, 2), (5, 2)], [(6, 1), (7, 0)]
    run_job(SCRIPT, args=words("late", of_two, of_three, after)).require_success()
    replay, found = Replay([0, 1]), load(tmp_path, 0, 1, 2)
    replay.take_turns(found, of_two, living=2)
    assert np.abs(replay.s[1]).mean() > 0.01, "else there would be nothing to ride by"
    replay.join(2)
    replay.take_turns(found, of_three, living=3)
    replay.take_turns(found, after, living=2)


def test_a_resumed_job_goes_on_with_momentum_and_frame(platoon, tmp_path):
    """As if both workers had copied the center: they begin there, in the frame as it was, with the momentum it had."""
    before, after = [(0, 0), (1, 1), (2, 1), (3, 0)], [(4, 1), (5, 0), (6, 0), (7, 1)]
    for job, turns in (("first", before), ("second", after)):
        done = platoon("launch", "-n", 2, "--resume", "kept", SCRIPT, tmp_path, *words(job, turns))
        assert done.returncode == 0, done.stdout + done.stderr
    replay = Replay([0, 1])
    replay.take_turns(load(tmp_path, 0, 1, name="first"), before, living=2)
    for rank in (0, 1):
        replay.join(rank)
    replay.take_turns(load(tmp_path, 0, 1, name="second"), after, living=2)


def test_who_overwrites_the_center_ends_its_momentum_and_stays_in_its_frame(run_job, tmp_path):
    before, after = [(0, 0), (1, 1), (2, 1), (3, 0)], [(4, 1), (5, 0), (6, 0), (7, 1)]
    run_job(SCRIPT, args=words("overwritten", before, after)).require_success()
    replay, found = Replay([0, 1]), load(tmp_path, 0, 1)
    replay.take_turns(found, before, living=2)
    assert all((x != c).all() for x, c in zip(replay.workers[1][0], replay.c))
    replay.overwrite(1)
    replay.take_turns(found, after, living=2)


@pytest.mark.promise
def test_a_worker_that_resumes_a_job_alone_ends_the_momentum(platoon, tmp_path):
    """A late worker would be carried off by it otherwise. Where the center stays, the momentum does, too."""
    before = [(0, 0), (1, 1), (2, 1), (3, 0)]
    for workers in (2, 1):
        options = ["--resume", "kept", "--log-dir", "logs"]
        done = platoon("launch", "-n", workers, *options, SCRIPT, tmp_path, *words("alone", before))
        logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("*.log"))
        assert done.returncode == 0, done.stdout + done.stderr + logs
