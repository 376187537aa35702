"""A worker is killed while a child that it has forked lives on: no lock of the worker outlives it there."""

import os
import signal

import pytest
from scripts_here import script_path

from platoon_base.shm.segments import Segment
from platoon_base.system.folder_lock import FolderLock, disown, is_locked, own

pytestmark = pytest.mark.base


@pytest.mark.parametrize("fork", [pytest.param("Python", marks=pytest.mark.promise), "C"])
def test_an_all_reduce_learns_that_a_worker_is_gone_though_its_child_lives(run_job, fork):
    outcome = run_job(script_path("forked_children_an_all_reduce_learns_that_a_worker_is_gone"), args=[fork])
    assert "rank 1 is lost" in outcome.reported["said"], outcome.logs
    assert outcome.reported["seconds"] < 20


def in_child(function):
    """Call a function in a forked child, and return what it returned, a number from 0 to 255."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(int(function()))
        finally:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def waiting_child():
    """Return a function that forks a child and returns once it runs; the fixture ends it."""
    children = []

    def fork():
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, b"!")
            signal.pause()
            os._exit(0)
        children.append(child)
        os.read(read, 1)
        os.close(read)
        os.close(write)

    yield fork
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_child_sees_the_locks_of_a_segment_and_has_none(waiting_child):
    name = f"/platoon-test-{os.getpid()}"
    with Segment.create(name, 4096) as segment, Segment.attach(name) as other:
        Segment.unlink(name)
        assert segment.try_lock(0)
        assert other.try_lock(1)
        assert in_child(lambda: segment.locked(0) and other.locked(1) and not segment.locked(2)) == 1
        waiting_child()
        segment.close()
        assert not other.locked(0)


def test_a_process_that_is_killed_holds_no_lock_of_a_segment_through_its_child():
    name = f"/platoon-test-{os.getpid()}"
    with Segment.create(name, 4096) as segment:
        read, write = os.pipe()
        victim = os.fork()
        if victim == 0:
            mine = Segment.attach(name)
            assert mine.try_lock(7)
            if os.fork() == 0:
                os.write(write, b"%d" % os.getpid())  # here it has let go of what it had from the other
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(victim, 0)
        child = int(os.read(read, 20))
        try:
            assert not segment.locked(7)
        finally:
            os.kill(child, signal.SIGKILL)
            os.close(read)
            os.close(write)
            Segment.unlink(name)


def test_a_child_does_not_keep_the_lock_of_a_folder(tmp_path, waiting_child):
    lock = FolderLock(tmp_path)
    waiting_child()
    lock.close()
    assert not is_locked(tmp_path)


def test_a_child_does_not_free_the_lock_of_a_folder(tmp_path):
    lock = FolderLock(tmp_path)
    assert in_child(lambda: lock.close() or 0) == 0
    assert is_locked(tmp_path)
    lock.close()


def test_a_child_leaves_a_file_alone_that_has_the_number_of_a_lock_now(tmp_path):
    (tmp_path / "of a lock").touch()
    (tmp_path / "another").write_text("7")
    fd = os.open(tmp_path / "of a lock", os.O_RDWR)
    own(fd)
    os.close(fd)  # without a word
    other = os.open(tmp_path / "another", os.O_RDONLY)
    try:
        os.dup2(other, fd)
        assert in_child(lambda: int(os.pread(fd, 1, 0))) == 7
    finally:
        disown(fd)
        for each in {fd, other}:
            os.close(each)
