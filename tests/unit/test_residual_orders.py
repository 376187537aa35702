"""When the controller of the first host lets couriers save residuals: before the next round, and before they end."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from watching import until

from platoon_base.checkpoints.files import About, CheckpointFolder, SavedResiduals, about_of
from platoon_base.checkpoints.writer import CheckpointWriter, Saving
from platoon_base.controller.controller import Controller
from platoon_base.controller.options import ControllerOptions
from platoon_base.controller.saving import JobSaving
from platoon_base.coordination.actions import RoundReached, Shared
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.courier.messages import Gather, Keep
from platoon_base.hosts.world import World
from platoon_base.job.files import JobFiles
from platoon_base.layout import Layout
from platoon_base.multihost import messages as between
from platoon_base.multihost.courier_table import CourierTable
from platoon_base.multihost.member import Member
from platoon_base.shm.job_state import JobState

pytestmark = pytest.mark.base

WORLD = World([1, 1], 0, ["a", "b"], ["127.0.0.1"] * 2, compression="int4")
VALUES = [np.ones(3, "f4")]
SHARED = Shared(Layout.of(VALUES), "LocalSGD", "")
ABOUT = About(seed=0, size=2, seconds=0.0, residuals=SavedResiduals(hosts=2, compression="int4"))


class Center:
    """Values that do not change, of round 4."""

    def __init__(self, has_hosts_rounds):
        self.has_hosts_rounds = has_hosts_rounds

    def snapshot(self, may_wait, publish=None):
        if publish is not None:
            publish(4, 0)
        return VALUES, []

    def close(self):
        pass


class Job:
    """The controller of a job on two hosts, with the messages that the launcher of the second one gets."""

    def __init__(self, files, folder, in_rounds=True):
        self.sent = []
        self.coordinator = Coordinator(2, 0, world=WORLD)
        job_state = JobState(bytearray(JobState.size_bytes(2)), 2, create=True)
        member = Member(1, "", b"", between.Arrive(1, "", 2, 1, "", "", "", [], "", 1))
        couriers = CourierTable(
            files, WORLD, self.coordinator.roster, {1: member}, lambda member, message: self.sent.append(message),
            lambda host: None, lambda host, why: None,
        )  # fmt: skip
        hosts = SimpleNamespace(world=WORLD, couriers=couriers)
        self.folder = folder
        self.writer = CheckpointWriter(Saving(folder, 1000.0), lambda layout: Center(in_rounds))
        self.saving = JobSaving(self.writer, job_state, self.coordinator, hosts, 0.0, None)
        self.controller = Controller(
            SimpleNamespace(reply=None),
            job_state,
            self.coordinator,
            None,
            None,
            ControllerOptions(),
            self.saving,
            hosts,
        )

    def key(self):
        """Return the key of the residuals of the newest checkpoint, once it is written."""
        until(lambda: not self.writer.writing)
        residuals = about_of(self.folder.file(self.folder.numbers()[-1])).residuals
        return None if residuals is None else residuals.key


@pytest.fixture
def files():
    found = JobFiles.create(2, world=WORLD)
    yield found
    found.remove()


@pytest.fixture
def folder(tmp_path):
    found = CheckpointFolder(Path(tmp_path))
    yield found
    found.close()


def test_hosts_save_their_residuals_before_they_begin_the_next_round(files, folder):
    job = Job(files, folder)
    job.writer.begin(ABOUT, SHARED.layout)
    key = job.key()
    job.controller.notify_hosts(RoundReached(6, {0: 1, 1: 1}))
    keep, gather = job.sent
    assert isinstance(keep, Keep)
    assert (keep.number, keep.key) == (4, key)
    assert isinstance(gather, Gather)
    job.writer.close()


def test_hosts_save_their_residuals_before_their_couriers_end(files, folder):
    job = Job(files, folder)
    job.saving.save_dropped(SHARED)
    keep, dropped = job.sent
    assert isinstance(keep, Keep)
    assert isinstance(dropped, between.CenterDropped)
    assert keep.key == job.key()


def test_a_center_that_couriers_move_is_saved_once_they_have_ended(files, folder):
    job = Job(files, folder, in_rounds=False)
    job.saving.save_dropped(SHARED)
    (dropped,) = job.sent
    assert isinstance(dropped, between.CenterDropped)
    assert job.key() is None
