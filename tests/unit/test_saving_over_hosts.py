"""When a center that couriers move is saved, and with which positions of the workers."""

from types import SimpleNamespace

import numpy as np
import pytest
from watching import until

from platoon_base.checkpoints.files import (
    About,
    Checkpoint,
    CheckpointFolder,
    newest_in,
    read_checkpoint,
)
from platoon_base.checkpoints.writer import CheckpointWriter, Saving
from platoon_base.controller.controller import Controller
from platoon_base.controller.outcome import ControllerOptions
from platoon_base.controller.processes import WorkerProcesses
from platoon_base.controller.saving import JobSaving
from platoon_base.coordination.actions import CenterDropped, Shared
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.job import backends
from platoon_base.layout import Layout
from platoon_base.multihost.deputy import LastCheckpoint
from platoon_base.multihost.messages import SavedState
from platoon_base.sharding import Position
from platoon_base.shm.job_state import JobState

pytestmark = pytest.mark.base

VALUES = [np.ones(3, "f4")]


def test_a_center_that_couriers_move_is_saved_once_they_have_ended(tmp_path):
    events = []

    def snapshot(may_wait):
        events.append("saved")
        return VALUES, []

    center = SimpleNamespace(snapshot=snapshot, close=lambda: None)
    couriers = SimpleNamespace(take=lambda event: events.append("ended"))
    job_state = JobState(bytearray(JobState.size_bytes(2)), 2, create=True)
    folder = CheckpointFolder(tmp_path)
    writer = CheckpointWriter(Saving(folder, 1000.0), lambda layout: center)
    try:
        coordinator, hosts = Coordinator(2, 0), SimpleNamespace(couriers=couriers)
        saving = JobSaving(writer, job_state, coordinator, hosts, 0.0, None)
        server, children = SimpleNamespace(reply=None), WorkerProcesses()
        controller = Controller(
            server, job_state, coordinator, children, lambda rank: False, ControllerOptions(), saving, hosts
        )
        controller.handle_center(CenterDropped(Shared(Layout.of(VALUES), "LocalSGD", "")))
        until(lambda: not writer.writing)
    finally:
        writer.close()
        folder.close()
    assert events == ["ended", "saved"]


def test_another_host_saves_the_latest_positions(tmp_path, monkeypatch):
    center = SimpleNamespace(snapshot=lambda may_wait: (VALUES, []), close=lambda: None)
    monkeypatch.setattr(backends, "watch_center", lambda files, layout: center)
    about = About(seed=0, size=1, seconds=0.0, positions={0: Position(1, 2, 9)})
    about = Checkpoint.of(about, Layout.of(VALUES), VALUES, []).about
    last = LastCheckpoint(None, SimpleNamespace(position=lambda rank: Position(2, 1, 15)))
    last.note(SavedState(about, str(tmp_path)))
    last.write()
    assert read_checkpoint(newest_in(tmp_path)).about.positions == {0: Position(2, 1, 15)}
