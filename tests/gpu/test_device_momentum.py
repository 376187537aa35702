"""A rule with states at the center, on devices against NumPy: deaths of owners, late joiners, checkpoints.

Without CUDA devices the same runs with the center on the host.
"""

import numpy as np
import pytest
from devices_here import DEVICES, on_devices
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
