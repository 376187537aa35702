"""Keeping the residual of a host: how many copies there are, what fails, what a dead courier leaves."""

import contextlib
import os
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest
from watching import until

from platoon_base.compression.packing import Residuals
from platoon_base.courier import messages as between
from platoon_base.courier.keeping import ResidualKeeper, Restoring
from platoon_base.courier.process import reporter
from platoon_base.hosts.world import World
from platoon_base.layout import Layout
from platoon_base.multihost.courier_process import CourierProcess

pytestmark = pytest.mark.base

LAYOUT = Layout.of([np.zeros(1_000_000, "f4")])
WORLDS = [
    World([1, 1], host, ["a", "b"], ["127.0.0.1"] * 2, "17" * 32, compression="int4") for host in (0, 1)
]  # fmt: skip


class Keeper:
    """A keeper whose thread stops behind each file until it may go on."""

    def __init__(self, folder, stops=False, host=1):
        self.folder, self.news, self.stops = folder, [], stops
        self.written, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)
        self.residuals = Residuals(LAYOUT, bytearray(Residuals.size_bytes(LAYOUT)))
        self.keeper = ResidualKeeper(WORLDS[host], LAYOUT, self.residuals, self.report)

    def report(self, news):
        self.news.append(news)
        if self.stops and threading.current_thread().name == "residual":
            self.written.release()
            assert self.goes_on.acquire(timeout=120)

    def keep(self, key, number=0, folder=None):
        self.keeper.keep(between.Keep(str(folder or self.folder), number, 0, key, None))

    def problems(self):
        self.keeper.close()
        return {news.key: news.problem for news in self.news}


def test_there_are_at_most_two_copies(tmp_path):
    size = LAYOUT.nbytes
    keeper = Keeper(tmp_path, stops=True)
    tracemalloc.start()
    try:
        keeper.keep("0a")
        assert keeper.written.acquire(timeout=120)
        for key in ("0b", "0c", "0d"):
            keeper.keep(key)
        assert tracemalloc.get_traced_memory()[1] < 2.5 * size
        keeper.goes_on.release()
        assert keeper.written.acquire(timeout=120)  # the last of them
        assert tracemalloc.get_traced_memory()[0] < 1.5 * size
    finally:
        tracemalloc.stop()
    keeper.goes_on.release()
    problems = keeper.problems()
    assert [bool(problems[key]) for key in ("0a", "0b", "0c", "0d")] == [False, True, False, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["residual-1-0a.npz", "residual-1-0d.npz"]


def test_whatever_fails_is_reported_and_the_next_one_is_written(tmp_path):
    keeper = Keeper(tmp_path)
    keeper.keep("0a", folder="no\0folder")
    keeper.keeper.close()
    before = threading.stack_size(1 << 47)  # more than there are addresses
    try:
        keeper.keep("0b")
    finally:
        threading.stack_size(before)
    keeper.keep("0c")
    problems = keeper.problems()
    assert "cannot be written" in problems["0a"]
    assert "no thread can be started" in problems["0b"]
    assert problems["0c"] == ""
    assert (tmp_path / "residual-1-0c.npz").exists()


def test_a_residual_that_was_packed_again_in_part_is_not_that_of_its_round(tmp_path):
    """Two couriers have died: one behind its contribution, which counts, and one while it packed it again."""
    keeper = Keeper(tmp_path)
    residuals = keeper.residuals
    for number in (1, 2):
        residuals.begin(number, 0)[1][0][:] = number
        residuals.end(number)
    residuals.begin(2, 0)[1][0][:5] = 2
    keeper.keep("0a", number=2)
    assert "packed in part" in keeper.problems()["0a"]
    residuals.drop(2)  # it does not count
    assert residuals.after(2, 0)[0][0] == 1


def test_a_disk_that_hangs_is_waited_for_so_long_and_what_it_gives_then_is_not_used(tmp_path):
    keeper, goes_on = Keeper(tmp_path), threading.Event()
    ones = [np.ones(LAYOUT.specs[0].shape, "f4")]

    def load():
        assert goes_on.wait(60)
        return ones

    waiting = Restoring(keeper.residuals, load, keeper.report, 60.0)
    assert not waiting.step()
    late = Restoring(keeper.residuals, load, keeper.report, 0.0)
    assert late.step()
    (news,) = keeper.news
    assert "is not read within 0 s" in news.problem
    goes_on.set()
    until(waiting.step)
    assert not keeper.residuals.latest[0].any()
    other = Keeper(tmp_path)
    restoring = Restoring(other.residuals, load, other.report, 60.0)
    until(restoring.step)
    assert other.residuals.latest[0].all()
    assert other.news == []


def test_lines_of_two_threads_are_whole():
    """The thread that writes a residual reports beside the courier's own."""
    reads, writes = os.pipe()
    report = reporter(writes)
    news = [between.Kept(key, "x" * 20_000) for key in "ab"]

    def say(which):
        for _ in range(100):
            report(which)

    threads = [threading.Thread(target=say, args=(each,)) for each in news]
    for thread in threads:
        thread.start()
    with open(reads, "rb") as file:
        found = [between.decode_news(file.readline()[:-1]) for _ in range(200)]
    for thread in threads:
        thread.join()
    os.close(writes)
    assert sorted(each.key for each in found) == ["a"] * 100 + ["b"] * 100


class Unkillable(subprocess.Popen):
    """The kernel ends no process that hangs on a disk."""

    def kill(self):
        pass


def test_a_courier_that_cannot_be_killed_is_left_alone(caplog):
    command = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"]
    with contextlib.ExitStack() as stack:
        process = Unkillable(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        closing = threading.Thread(target=CourierProcess(process, 1).close, daemon=True)
        closing.start()
        closing.join(30)
        assert not closing.is_alive()
        assert "though it was killed" in caplog.text
        assert process.stdout.closed
