"""Which residuals stay beside checkpoints while these are written, and when hosts are to save theirs."""

import threading

import numpy as np
import pytest
from watching import until

from platoon_base.checkpoints.files import About, Checkpoint, CheckpointFolder, about_of
from platoon_base.checkpoints.residuals import SavedResiduals
from platoon_base.checkpoints.writer import CheckpointWriter, Saving
from platoon_base.layout import Layout

pytestmark = pytest.mark.base

VALUES = [np.ones(3, "f4")]
LAYOUT = Layout.of(VALUES)


class Center:
    """Values of rounds; the copy of the writer's thread stops before or behind the moment that it publishes."""

    has_hosts_rounds = True

    def __init__(self, stops):
        self.stops, self.arrived, self.goes_on, self.number = stops, threading.Event(), threading.Event(), 0
        self.values = VALUES

    def snapshot(self, may_wait, publish):
        self.stop("before", may_wait)
        self.number += 1
        publish(self.number, 0)
        self.stop("behind", may_wait)
        if self.stops == "fails" and may_wait:
            raise OSError("no room")
        return self.values, []

    def stop(self, where, may_wait):
        if where == self.stops and may_wait:
            self.arrived.set()
            assert self.goes_on.wait(60)

    def close(self):
        pass


@pytest.fixture
def folder(tmp_path):
    found = CheckpointFolder(tmp_path / "kept")
    yield found
    found.close()


def about(key=""):
    return About(seed=0, size=2, seconds=0.0, residuals=SavedResiduals(key=key, hosts=2, compression="int4"))


def write_files(folder, key):
    for host in (0, 1):
        (folder.path / f"residual-{host}-{key}.npz").write_text("")


def residuals_in(folder):
    return {path.name.split("-")[2][:-4] for path in folder.path.glob("residual-*.npz")}


def test_residuals_stay_while_their_checkpoint_is_waited_for(folder):
    """The last checkpoint begins while the one before is being written."""
    center = Center("behind")
    writer = CheckpointWriter(Saving(folder, 1000.0), lambda layout: center)
    write_files(folder, "0d")
    writer.begin(about(), LAYOUT)
    assert center.arrived.wait(60)
    first = writer.moments.get_nowait()
    write_files(folder, first.key)
    writer.end(about(), LAYOUT)
    last = writer.moments.get_nowait()
    assert sorted(last.kept) == sorted([first.key, last.key])
    write_files(folder, last.key)
    center.goes_on.set()
    until(lambda: not writer.writing)
    assert residuals_in(folder) == {first.key, last.key}
    assert folder.residual_keys == [first.key, last.key]
    assert writer.tally == (2, 0, "")


@pytest.mark.parametrize("how", ["no copy", "not finite"])
def test_residuals_of_a_checkpoint_that_failed_go_with_the_next_one(folder, how):
    center = Center("fails" if how == "no copy" else "")
    center.values = VALUES if how == "no copy" else [np.full(3, np.nan, "f4")]
    writer = CheckpointWriter(Saving(folder, 1000.0), lambda layout: center)
    writer.begin(about(), LAYOUT)
    until(lambda: not writer.writing)
    failed = writer.moments.get_nowait()
    write_files(folder, failed.key)
    center.stops, center.values = "", VALUES
    writer.begin(about(), LAYOUT)
    until(lambda: not writer.writing)
    second = writer.moments.get_nowait()
    assert second.kept == [second.key]
    assert residuals_in(folder) == set()
    writer.close()


def test_no_file_is_read_before_the_moment_is_published(folder, tmp_path):
    """The controller's thread, which sends heartbeats, takes the last copy."""
    folder.save(Checkpoint.of(about("0a"), LAYOUT, VALUES, []))
    folder.close()
    again = CheckpointFolder(folder.path)
    writer = CheckpointWriter(Saving(again, 1000.0), lambda layout: Center(""))
    writer.begin(about(), LAYOUT)
    until(lambda: not writer.writing)
    first = writer.moments.get_nowait()
    for path in folder.path.glob("checkpoint-*"):
        path.unlink()
    writer.end(about(), LAYOUT)
    last = writer.moments.get_nowait()
    assert sorted(first.kept) == sorted(["0a", first.key])
    assert sorted(last.kept) == sorted(["0a", first.key, last.key])
    until(lambda: not writer.writing)
    again.close()


def test_a_moment_after_the_last_one_is_not_published(folder):
    """The couriers that had the residuals have ended, or belong to the next parameters."""
    center = Center("before")
    writer = CheckpointWriter(Saving(folder, 1000.0), lambda layout: center)
    writer.begin(about(), LAYOUT)
    assert center.arrived.wait(60)
    writer.end(about(), LAYOUT)
    last = writer.moments.get_nowait()
    center.goes_on.set()
    until(lambda: not writer.writing)
    assert writer.moments.empty()
    assert [about_of(folder.file(number)).residuals.key for number in (1, 2)] == ["", last.key]


def test_who_saves_in_place_of_the_first_host_removes_no_residuals(folder):
    """On a disk of its own there is no checkpoint yet that they belong to."""
    write_files(folder, "0a")
    folder.save(Checkpoint.of(about(), LAYOUT, VALUES, []))
    assert residuals_in(folder) == {"0a"}
