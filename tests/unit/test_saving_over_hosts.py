"""When the controller of the first host saves a center that couriers move: after these have ended."""

from types import SimpleNamespace

import numpy as np
import pytest
from watching import until

from platoon_base.checkpoints.files import CheckpointFolder
from platoon_base.checkpoints.writer import CheckpointWriter, Saving
from platoon_base.controller.saving import JobSaving
from platoon_base.coordination.actions import Shared
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.layout import Layout
from platoon_base.shm.job_state import JobState

pytestmark = pytest.mark.base

VALUES = [np.ones(3, "f4")]


def test_a_center_that_couriers_move_is_saved_once_they_have_ended(tmp_path):
    events = []

    def snapshot(may_wait):
        events.append("saved")
        return VALUES, []

    center = SimpleNamespace(snapshot=snapshot, close=lambda: None)
    couriers = SimpleNamespace(center_dropped=lambda: events.append("ended"))
    job_state = JobState(bytearray(JobState.size_bytes(2)), 2, create=True)
    folder = CheckpointFolder(tmp_path)
    writer = CheckpointWriter(Saving(folder, 1000.0), lambda layout: center)
    try:
        saving = JobSaving(writer, job_state, Coordinator(2, 0), SimpleNamespace(couriers=couriers), 0.0, None)
        saving.save_dropped(Shared(Layout.of(VALUES), "LocalSGD", ""))
        until(lambda: not writer.writing)
    finally:
        writer.close()
        folder.close()
    assert events == ["ended", "saved"]
