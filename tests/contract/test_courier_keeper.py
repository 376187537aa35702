"""A launcher and the residuals that its courier, a real process, saves: failures are logged, and the end waits."""

import select
import time

import numpy as np
import pytest
from courier_processes import couriers_of

from platoon_base.courier import messages as between
from platoon_base.hosts.world import World
from platoon_base.job.files import JobFiles
from platoon_base.multihost import courier_process
from platoon_base.multihost.couriers import CourierKeeper

pytestmark = pytest.mark.base

WORLD = World([1, 1], 1, ["a", "b"], ["127.0.0.1"] * 2, "17" * 32, compression="int4")
SPECS = [("w", (1000, 1000), "float32")]


class Launcher:
    def __init__(self, files):
        self.news = []
        self.couriers = CourierKeeper(files, self.news.append)

    def start(self, resumed=None):
        self.couriers.start(SPECS, 0, "average", 0.2, resumed)
        self.until(lambda: self.news)

    def until(self, done):
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline
            select.select(self.couriers.fds, [], [], 0.2)
            self.couriers.step()

    def stop(self):
        """Stop the courier, so that it does nothing until it is killed."""
        (courier,) = couriers_of()
        courier.suspend()

    def kill(self):
        """Kill the courier, and wait for the next one."""
        (courier,) = couriers_of()
        courier.kill()
        self.until(lambda: len(self.news) == 2)  # the next one listens

    def keep(self, folder, key):
        self.couriers.keep(between.Keep(str(folder), 0, 0, key, [key]))


@pytest.fixture
def launcher():
    files = JobFiles.create(2, world=WORLD)
    found = Launcher(files)
    try:
        yield found
    finally:
        found.couriers.close()
        files.remove()


def test_a_residual_that_cannot_be_written_is_warned_of_and_the_courier_goes_on(launcher, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    launcher.start()
    launcher.keep(tmp_path / "file" / "kept", "aa")
    assert launcher.couriers.saving
    launcher.until(lambda: not launcher.couriers.saving)
    assert "the residual of host 1 is missing in a checkpoint" in caplog.text
    assert "Make room there" in caplog.text
    launcher.keep(tmp_path, "bb")
    launcher.until(lambda: not launcher.couriers.saving)
    assert (tmp_path / "residual-1-bb.npz").exists()
    assert "started again" not in caplog.text


def test_a_courier_whose_center_is_released_ends_once_the_residual_is_written(launcher, tmp_path, caplog):
    launcher.start()
    launcher.keep(tmp_path, "aa")
    launcher.couriers.dropped()
    launcher.until(lambda: not launcher.couriers.fds)
    assert not launcher.couriers.saving
    with np.load(tmp_path / "residual-1-aa.npz") as file:
        assert file["residual/0"].shape == (1000, 1000)
    assert caplog.text == ""


def test_a_courier_that_ends_before_the_residual_is_written_is_warned_of(launcher, tmp_path, caplog):
    launcher.start()
    launcher.stop()
    launcher.keep(tmp_path, "aa")
    launcher.kill()
    assert "is started again" in caplog.text
    assert not launcher.couriers.saving
    assert not (tmp_path / "residual-1-aa.npz").exists()
    assert "has ended before it was written" in caplog.text


def test_a_residual_that_is_not_written_in_time_is_warned_of_while_the_job_goes_on(
    launcher, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(courier_process, "STALL_TIMEOUT_S", 0.1)
    launcher.start()
    launcher.stop()
    launcher.keep(tmp_path, "aa")
    launcher.until(lambda: "is not written within 0.1 s" in caplog.text)
    launcher.kill()
    assert caplog.text.count("the residual of host 1 is missing") == 1


def test_a_residual_that_is_missing_is_warned_of_once(launcher, tmp_path, caplog):
    launcher.start(resumed=(str(tmp_path), "aa"))
    launcher.kill()
    assert caplog.text.count("host 1 starts with a residual of zero") == 1
    assert "residual-1-aa.npz cannot be read" in caplog.text
