"""A rule with states at the center, on devices against NumPy: deaths of owners, late joiners, checkpoints.

Without CUDA devices the same runs with the center on the host.
"""

import numpy as np
import pytest
from devices_here import DEVICES, WHY_NOT, on_devices

from platoon_base.checkpoints.files import CheckpointFolder, read_checkpoint
from platoon_base.checkpoints.writer import Saving

pytestmark = pytest.mark.timeout(300)

if len(DEVICES) < 2:
    pytest.skip("no devices: run `make setup` on Debian 12, which installs pygpu and OpenCL", allow_module_level=True)


@pytest.fixture
def run_on_devices(run_job):
    """Run a script, given as text, on the first N devices."""
    return on_devices(run_job)


# Each worker in its turn, three times; NumPy follows.
TURNS = f"""
rule = CenterMomentum(0.3, 0.9, 1.5)
ON_DEVICES = {not WHY_NOT}
starts = draw(0)
arrays = [on_device(a) for a in starts]
worker.init_shared_params(arrays, rule)

def advance(progress):
    for array, add in zip(arrays, progress):
        array[...] = np.asarray(array) + add
    worker.progress(steps=1, epoch=1)
    worker.sync_params()

def require_equal(expected, where):
    for array, x in zip(arrays, expected):
        assert np.array_equal(np.asarray(array), x), where

def take_turns(replay, seed):
    worker.barrier()
    for step in range(3):
        for turn in range(size):
            progress = draw(seed + 100 * step + turn)
            replay.sync(turn, progress)
            if turn == rank:
                advance(progress)
                require_equal(replay.locals[turn], (step, turn))
            worker.barrier()
"""


def test_the_states_survive_those_who_own_them(run_on_devices):
    """All but the last rank are killed; it goes on bit by bit as if their partitions were still theirs."""
    outcome = run_on_devices(
        TURNS
        + """
replay = Replay(rule, starts)
take_turns(replay, 1)
if rank < size - 1:
    os.kill(os.getpid(), signal.SIGKILL)
until(lambda: living() == 1)
if ON_DEVICES:
    with partitions_of(arrays) as directory:
        def all_are_mine():
            worker.copy_to_local()  # the partitions of the dead are made anew meanwhile
            return all(directory.entry(partition).owner == rank for partition in range(directory.workers))
        until(all_are_mine, 20)
worker.copy_to_local()
replay.take_over(rank)
require_equal(replay.locals[rank], "taken over")
for step in range(3):
    replay.sync(rank, draw(step), among=1)
    advance(draw(step))
    require_equal(replay.locals[rank], step)
worker.report({"done": 1})
""",
        workers=len(DEVICES),
    )
    assert outcome.reported == {"done": 1}, outcome.logs


def test_a_worker_that_joins_late_starts_where_the_momentum_has_moved_the_center(run_on_devices):
    """At the center, it feels no pull; if it began with another sum of moves it would be carried past the center."""
    outcome = run_on_devices(
        TURNS
        + """
joined = os.path.join(sys.argv[1], "joined")
if not worker.late:
    take_turns(Replay(rule, starts), 1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    until(lambda: os.path.exists(joined))
    worker.sync_params()    # with partitions that another owns now
    assert all(np.isfinite(np.asarray(array)).all() for array in arrays)
else:
    before = [np.asarray(array) for array in arrays]
    worker.sync_params()
    after = [np.asarray(array) for array in arrays]
    with worker.center_params():
        require_equal(after, "the center")
    open(joined, "w").close()
    worker.report({"moved": float(sum(np.abs(a - b).sum() for a, b in zip(after, before)))})
""",
        max_restarts=1,
    ).require_success()
    assert outcome.result.restarts == 1
    assert outcome.reported["moved"] > 0, outcome.reported


def test_the_states_are_saved_and_resumed(run_on_devices, tmp_path):
    """The next job goes on bit by bit from the checkpoint, with the momentum that the center had."""
    folder = CheckpointFolder(tmp_path / "kept")
    job = run_on_devices(
        TURNS
        + """
replay = Replay(rule, starts)
take_turns(replay, 1)
if rank == 0:
    buffers = [replay.center, *replay.states]
    named = {f"{k} {i}": a for k, buffer in enumerate(buffers) for i, a in enumerate(buffer)}
    np.savez(os.path.join(sys.argv[1], "replay.npz"), **named)
worker.release_shared_params()
""",
        workers=len(DEVICES),
        saving=Saving(folder, 1000.0),
    ).require_success()
    assert not job.result.checkpoints.unsaved
    found = folder.newest()
    checkpoint = read_checkpoint(found[0])
    with np.load(tmp_path / "replay.npz") as replay:
        assert len(checkpoint.states) == 2
        for k, arrays in enumerate([checkpoint.center, *checkpoint.states]):
            for i, array in enumerate(arrays):
                np.testing.assert_array_equal(array, replay[f"{k} {i}"])
    run_on_devices(
        TURNS
        + """
assert worker.resume_at.steps == 3, worker.resume_at
replay = Replay(rule, starts)
with np.load(os.path.join(sys.argv[1], "replay.npz")) as saved:
    for k, buffer in enumerate([replay.center, *replay.states]):
        for i in range(len(buffer)):
            buffer[i] = saved[f"{k} {i}"].copy()
for turn in range(size):
    replay.take_over(turn)
require_equal(replay.center, "resumed")
take_turns(replay, 1000)
worker.release_shared_params()
""",
        workers=len(DEVICES),
        resume=found,
        saving=Saving(folder, 1000.0),
    ).require_success()
    folder.close()


def test_momentum_ends_where_a_worker_puts_other_values_into_the_center(run_on_devices):
    run_on_devices(
        TURNS
        + """
replay = Replay(rule, starts)
take_turns(replay, 1)
values = [c.copy() for c in replay.center]
for value in values:
    value.reshape(-1)[::3] += 1
replay.overwrite(0, values)
if rank == 0:
    for array, value in zip(arrays, values):
        array[...] = value
    worker.copy_to_global()
take_turns(replay, 1000)
""",
        workers=len(DEVICES),
    ).require_success()


def test_workers_that_synchronize_at_once_lose_nothing(run_on_devices):
    """With a strength of 1 and no gain, worker and center change places: the sum of all grows by the progress alone."""
    run_on_devices(
        f"""
        x = on_device(np.zeros(1_000_001), "float32")
        worker.init_shared_params([x], CenterMomentum(1.0, 0.9, 0.0))
        worker.barrier()
        for step in range(100):
            x[...] = np.asarray(x) + 1
            worker.sync_params({bool(WHY_NOT)} or step % 2 == 0)    # on devices, under locks all the same
        own = np.asarray(x)
        worker.barrier()
        with worker.center_params():
            center = np.asarray(x)
        total = worker.all_reduce(own) + center
        assert (total == 100 * size).all(), (total.min(), total.max())
        """,
        workers=len(DEVICES),
    ).require_success()
