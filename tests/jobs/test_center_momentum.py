"""`CenterMomentum`, the default rule, in jobs of real processes, bit by bit against NumPy.

Workers come by turns, leave, die, join late and resume.
"""

import numpy as np
import pytest

pytestmark = pytest.mark.base

# Two stripes, many blocks: the first goes through C, the second through NumPy, as it has several dtypes.
SHAPES = [((37, 11), "float32"), ((600_000,), "float32"), ((5,), "float64"), ((3,), "float16")]


def progress(rank, turn, shape, dtype):
    """Return what a worker learns before its turn, whichever process computes it."""
    rng = np.random.default_rng([rank, turn, shape[0]])
    return (0.1 * rng.standard_normal(shape)).astype(dtype)


BY_TURNS = f"""
import os, signal, subprocess, sys
import numpy as np
from platoon_base import connect
from platoon_base.rules import CenterMomentum
from watching import center_of, living, until

SHAPES = {SHAPES}

def progress(rank, turn, shape, dtype):
    rng = np.random.default_rng([rank, turn, shape[0]])
    return (0.1 * rng.standard_normal(shape)).astype(dtype)

x = [np.ones(shape, dtype) for shape, dtype in SHAPES]
seen = {{}}

def synchronize(turn):
    for array in x:
        array += progress(worker.global_rank, turn, array.shape, array.dtype)
    worker.progress(steps=1, epoch=1)
    worker.sync_params()
    seen.update({{f"{{turn}} x {{i}}": array.copy() for i, array in enumerate(x)}})
    with center_of(x, CenterMomentum()) as center:
        values, (m, s) = center.snapshot()
    for name, arrays in (("c", values), ("m", m), ("s", s)):
        seen.update({{f"{{turn}} {{name}} {{i}}": array for i, array in enumerate(arrays)}})

def take_turns(turns):
    for turn, who in turns:
        if who == worker.global_rank:
            synchronize(turn)
        worker.barrier(f"after turn {{turn}}")

def save(name=""):
    np.savez(f"{{sys.argv[1]}}/{{name}}{{worker.global_rank}}.npz", **seen)
"""


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


def test_two_workers_by_turns_follow_the_equations(run_job, tmp_path):
    turns = list(enumerate([0, 1, 1, 0, 0, 0, 1, 0, 1]))
    run_job(
        BY_TURNS
        + f"""
with connect() as worker:
    worker.init_shared_params(x, CenterMomentum())
    worker.barrier("all here")
    take_turns({turns})
    save()
"""
    ).require_success()
    Replay([0, 1]).take_turns(load(tmp_path, 0, 1), turns, living=2)


@pytest.mark.parametrize("end", ["worker.close(); raise SystemExit", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_number_of_workers_is_that_of_the_living(run_job, tmp_path, end):
    """Of three workers one leaves, or is killed; the momentum that it gave is kept."""
    of_three, of_two = [(0, 2), (1, 0), (2, 1), (3, 2), (4, 1)], [(5, 0), (6, 1), (7, 1), (8, 0)]
    outcome = run_job(
        BY_TURNS
        + f"""
with connect() as worker:
    worker.init_shared_params(x, CenterMomentum())
    worker.barrier("all here")
    take_turns({of_three})
    save()
    if worker.global_rank == 2:
        {end}
    until(lambda: living() == 2)
    worker.barrier("two are left")
    take_turns({of_two})
    save()
""",
        workers=3,
    )
    ended = {exit.rank: exit.status for exit in outcome.result.exits}
    assert ended[0] == ended[1] == 0, outcome.logs
    replay, found = Replay([0, 1, 2]), load(tmp_path, 0, 1, 2)
    replay.take_turns(found, of_three, living=3)
    replay.take_turns(found, of_two, living=2)


def test_a_late_worker_begins_in_the_moved_frame(run_job, tmp_path):
    """If it began with another sum of moves, its first synchronization would carry it past the center."""
    of_two, of_three, after = [(0, 0), (1, 1), (2, 0), (3, 1)], [(4, 2), (5, 2)], [(6, 1), (7, 0)]
    run_job(
        BY_TURNS
        + f"""
late = "PLATOON_RANK" not in os.environ
with connect() as worker:
    worker.init_shared_params(x, CenterMomentum())
    if late:
        assert living() == 3
        for turn, _ in {of_three}:
            synchronize(turn)
        save()
    else:
        worker.barrier("all here")
        take_turns({of_two})
        if worker.global_rank == 0:
            environment = {{k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}}
            subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
        worker.barrier("the late one has gone")
        until(lambda: living() == 2)
        take_turns({after})
        save()
"""
    ).require_success()
    replay, found = Replay([0, 1]), load(tmp_path, 0, 1, 2)
    replay.take_turns(found, of_two, living=2)
    assert np.abs(replay.s[1]).mean() > 0.01, "else there would be nothing to ride by"
    replay.join(2)
    replay.take_turns(found, of_three, living=3)
    replay.take_turns(found, after, living=2)


def test_a_resumed_job_goes_on_with_momentum_and_frame(platoon, write_script, tmp_path):
    """As if both workers had copied the center: they begin there, in the frame as it was, with the momentum it had."""
    before, after = [(0, 0), (1, 1), (2, 1), (3, 0)], [(4, 1), (5, 0), (6, 0), (7, 1)]
    script = write_script(
        BY_TURNS
        + f"""
with connect() as worker:
    worker.init_shared_params(x, CenterMomentum())
    worker.barrier("all here")
    first = worker.resume_at.steps == 0
    assert first == (sys.argv[2] == "first"), worker.resume_at
    take_turns({before} if first else {after})
    save(sys.argv[2])
"""
    )
    for job in ("first", "second"):
        done = platoon("launch", "-n", 2, "--resume", "kept", script, tmp_path, job)
        assert done.returncode == 0, done.stdout + done.stderr
    replay = Replay([0, 1])
    replay.take_turns(load(tmp_path, 0, 1, name="first"), before, living=2)
    for rank in (0, 1):
        replay.join(rank)
    replay.take_turns(load(tmp_path, 0, 1, name="second"), after, living=2)


def test_who_overwrites_the_center_ends_its_momentum_and_stays_in_its_frame(run_job, tmp_path):
    before, after = [(0, 0), (1, 1), (2, 1), (3, 0)], [(4, 1), (5, 0), (6, 0), (7, 1)]
    run_job(
        BY_TURNS
        + f"""
with connect() as worker:
    worker.init_shared_params(x, CenterMomentum())
    worker.barrier("all here")
    take_turns({before})
    if worker.global_rank == 1:
        worker.copy_to_global()
    worker.barrier("overwritten")
    take_turns({after})
    save()
"""
    ).require_success()
    replay, found = Replay([0, 1]), load(tmp_path, 0, 1)
    replay.take_turns(found, before, living=2)
    assert all((x != c).all() for x, c in zip(replay.workers[1][0], replay.c))
    replay.overwrite(1)
    replay.take_turns(found, after, living=2)


def test_a_worker_that_resumes_a_job_alone_ends_the_momentum(platoon, write_script, tmp_path):
    """A late worker would be carried off by it otherwise. Where the center stays, the momentum does, too."""
    before = [(0, 0), (1, 1), (2, 1), (3, 0)]
    script = write_script(
        BY_TURNS
        + f"""
def look():
    with center_of(x, CenterMomentum()) as center:
        return center.snapshot()

with connect() as worker:
    worker.init_shared_params(x, CenterMomentum())
    if worker.late:
        values, (m, s) = look()
        worker.sync_params()    # it sits at the center: nothing but momentum could move it
        for now, old, momentum in zip(x, values, m):
            assert ((now != old) == (momentum != 0)).all()
    elif worker.global_size == 2:
        worker.barrier("all here")
        take_turns({before})
    else:
        values, (m, s) = look()
        assert all((state != 0).all() for state in m)
        for array in x:
            array.reshape(-1)[1:] += 1
        worker.sync_params()
        after, (m_after, s_after) = look()
        for i, array in enumerate(x):
            assert (after[i] == array).all()
            assert (s_after[i] == s[i]).all()
            assert not m_after[i].reshape(-1)[1:].any()
            assert m_after[i].flat[0] == m[i].flat[0]
        environment = {{k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}}
        subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
"""
    )
    for workers in (2, 1):
        done = platoon("launch", "-n", workers, "--resume", "kept", "--log-dir", "logs", script, tmp_path)
        logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("*.log"))
        assert done.returncode == 0, done.stdout + done.stderr + logs
