"""Jobs on devices against NumPy: collectives, the center, workers that leave or are killed.

On CUDA devices that reach each other these are NCCL and the center in their memory; elsewhere OpenCL on the CPU runs
what is common, through the host.
"""

import threading

import numpy as np
import pytest
from devices_here import DEVICES, on_devices
from rule_table import ON_DEVICES
from scripts_here import script_path

from platoon_base.checkpoints.files import CheckpointFolder, read_checkpoint
from platoon_base.checkpoints.writer import Saving

pytestmark = pytest.mark.timeout(600)


if len(DEVICES) < 2:
    pytest.skip("no devices: run `make setup` on Debian 12, which installs pygpu and OpenCL", allow_module_level=True)


@pytest.fixture
def run_on_devices(run_job):
    """Run a script, given as text, on the first N devices."""
    return on_devices(run_job)


def test_every_operation_and_dtype(run_on_devices):
    run_on_devices(script_path("device_jobs_every_operation_and_dtype"), workers=len(DEVICES)).require_success()


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise RuntimeError('oops')", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_rank_that_goes_ends_the_all_reduce_of_the_others(run_on_devices, end):
    outcome = run_on_devices(
        f"""
        x = on_device(np.ones(1 << 20), "float32")
        for _ in range(3):
            worker.all_reduce(x, "mean", x)
        np.asarray(x)
        if rank == 1:
            {end}
        try:
            worker.all_reduce(x, "sum", x)
            np.asarray(x)
            worker.all_reduce(x, "sum", x)
        except WorkerLostError as exc:
            worker.report({{"said": str(exc)}})
        else:
            worker.report({{"said": "nothing"}})
        """
    )
    assert "rank 1" in outcome.reported["said"], outcome.logs


def test_ranks_that_make_other_calls_are_told(run_on_devices):
    outcome = run_on_devices(script_path("device_jobs_ranks_that_make_other_calls_are_told"))
    assert "rank 1 waits in 'barrier elsewhere'" in outcome.reported["said"], outcome.logs


@pytest.mark.parametrize(
    ("locked", "dtype"),
    [
        (True, "float32"),
        (False, "float64"),
        pytest.param(True, "float64", marks=pytest.mark.rare),
        pytest.param(False, "float32", marks=pytest.mark.rare),
    ],
)
@pytest.mark.parametrize("rule", ON_DEVICES, ids=str)
def test_the_rules_are_their_equations_bit_by_bit(run_on_devices, rule, locked, dtype):
    """The workers take turns, so NumPy can follow."""
    run_on_devices(
        f"""
        rule, dtype = rules.{rule}, {dtype!r}
        starts = draw(0, dtype=dtype)
        arrays = [on_device(a) for a in starts]
        worker.init_shared_params(arrays, rule)
        worker.barrier()
        replay = Replay(rule, starts)
        for step in range(4):
            for turn in range(size):
                progress = draw(100 * step + turn, dtype=dtype)
                replay.sync(turn, progress)
                if turn == rank:
                    for array, add in zip(arrays, progress):
                        array[...] = np.asarray(array) + add
                    worker.sync_params({locked})
                    for array, x in zip(arrays, replay.locals[turn]):
                        assert np.array_equal(np.asarray(array), x), (step, turn)
                worker.barrier()
        with worker.center_params():
            for array, c in zip(arrays, replay.validated):
                assert np.allclose(np.asarray(array), c, rtol=1e-6), "center"
        worker.barrier()
        """,
        workers=len(DEVICES),
    ).require_success()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", ["EASGD()", "ASGD()", "CenterMomentum()"])
def test_the_only_worker_trains_as_if_it_were_alone(run_on_devices, rule, dtype):
    run_on_devices(
        f"""
        dtype = {dtype!r}
        starts = draw(0, dtype=dtype)
        arrays = [on_device(a) for a in starts]
        worker.init_shared_params(arrays, {rule})
        for step in range(4):
            for x, array, add in zip(starts, arrays, draw(1 + step, dtype=dtype)):
                x += add
                array[...] = np.asarray(array) + add
            worker.sync_params(step % 2 == 0)
        for x, array in zip(starts, arrays):
            assert np.array_equal(np.asarray(array), x)
        worker.global_size = 2                # as if another had come
        worker.copy_to_local()
        for x, array in zip(starts, arrays):
            assert np.array_equal(np.asarray(array), x)
        worker.sync_params()                  # what the rule keeps is that of the last time: nothing moves
        for x, array in zip(starts, arrays):
            assert np.array_equal(np.asarray(array), x)
        """,
        workers=1,
    ).require_success()


COUNTING = script_path("device_jobs_counting")


def test_a_center_on_devices_is_saved_and_resumed(run_on_devices, tmp_path):
    """All workers are killed once a checkpoint has what they had done at step 31; the next job does the rest."""
    (tmp_path / "failed").touch()
    folder = CheckpointFolder(tmp_path / "kept")
    stop = threading.Event()

    def watch():
        while not stop.wait(0.05):
            found = folder.newest() if folder.numbers() else None
            if found and found[1].parameters and all(p.steps == 31 for p in found[1].positions.values()):
                (tmp_path / "saved").touch()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    first = run_on_devices(COUNTING, args=["holds"], saving=Saving(folder, 0.2))
    stop.set()
    watcher.join()
    assert first.result.status == 137, first.logs
    (tmp_path / "rank0.log").unlink()
    (tmp_path / "rank1.log").unlink()
    found = folder.newest()
    center = read_checkpoint(found[0]).center
    assert {values.min() for values in center} == {values.max() for values in center} == {62.0}
    second = run_on_devices(COUNTING, args=["goes on"], resume=found, saving=Saving(folder, 1000.0)).require_success()
    assert all("starts at (1, 31, 31)" in log for log in second.logs)
    assert second.reported["lowest float32 0"] == second.reported["highest float64 0"] == 80
    folder.close()


# A rule with states at the center.


def test_a_worker_that_joins_late_starts_where_the_momentum_has_moved_the_center(run_on_devices):
    """At the center, it feels no pull; if it began with another sum of moves it would be carried past the center."""
    outcome = run_on_devices(script_path("device_momentum_joins_late"), max_restarts=1).require_success()
    assert outcome.result.restarts == 1
    assert outcome.reported["moved"] > 0, outcome.reported


def test_the_states_are_saved_and_resumed(run_on_devices, tmp_path):
    """The next job goes on bit by bit from the checkpoint, with the momentum that the center had."""
    folder = CheckpointFolder(tmp_path / "kept")
    job = run_on_devices(
        script_path("device_momentum_saved"), workers=len(DEVICES), saving=Saving(folder, 1000.0)
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
        script_path("device_momentum_resumed"), workers=len(DEVICES), resume=found, saving=Saving(folder, 1000.0)
    ).require_success()
    folder.close()


def test_momentum_ends_where_a_worker_puts_other_values_into_the_center(run_on_devices):
    run_on_devices(script_path("device_momentum_overwritten"), workers=len(DEVICES)).require_success()
