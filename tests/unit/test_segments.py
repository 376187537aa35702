"""Shared memory and its locks, between two handles and between two processes, also when one is killed."""

import os
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
from scripts_here import script_path

from platoon_base.errors import BackendUnavailableError, ConfigurationError
from platoon_base.job.files import segment_prefix
from platoon_base.shm import segments
from platoon_base.shm.segments import SHM_FOLDER, Segment, abandoned

pytestmark = pytest.mark.base

LOCK_AND_WAIT = script_path("segments_lock_and_wait")


@pytest.fixture
def name():
    made = f"{segment_prefix()}test{os.getpid()}-{uuid.uuid4().hex[:8]}"
    yield made
    Segment.unlink(made)


@pytest.fixture
def pair(name):
    """Two handles of one segment."""
    with Segment.create(name, 4096) as one, Segment.attach(name) as two:
        yield one, two


@pytest.fixture
def other_process(pair):
    """A process that has the segment open and holds the lock of byte 7; it frees it when it reads a line."""
    with subprocess.Popen(
        [sys.executable, LOCK_AND_WAIT, pair[0].name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def path(name):
    return Path(SHM_FOLDER) / name.lstrip("/")


def test_a_new_segment_is_zeros_that_all_see(pair):
    one, two = pair
    assert one.buffer[:] == bytes(4096)
    one.buffer[10:13] = b"abc"
    two.buffer[0] = 9
    assert two.buffer[10:13] == b"abc"
    assert one.buffer[0] == 9
    assert len(two.buffer) == 4096


def test_only_the_user_may_open_it(name):
    umask = os.umask(0)
    try:
        with Segment.create(name, 4096):
            assert stat.S_IMODE(path(name).stat().st_mode) == 0o600
    finally:
        os.umask(umask)


def test_the_memory_is_reserved_at_once(name):
    with Segment.create(name, 1 << 20):
        assert path(name).stat().st_blocks * 512 >= 1 << 20


def test_memory_that_is_added_is_reserved_at_once(name):
    with Segment.create(name, 4096) as segment:
        segment.grow(1 << 20)
        assert path(name).stat().st_blocks * 512 >= 1 << 20


CREATE_ON_A_SMALL_DISK = script_path("segments_create_on_a_small_disk")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount, as root")
def test_where_there_is_too_little_the_creation_fails_and_no_later_access(name):
    code = 'mount -t tmpfs -o size=1m none /dev/shm; exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", code, "sh", sys.executable, CREATE_ON_A_SMALL_DISK, name],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("needs 2 MB of shared memory, /dev/shm has 1 MB free"), done


def test_a_leftover_of_that_name_is_replaced(name):
    with Segment.create(name, 4096) as old:
        old.buffer[0] = 9
        with Segment.create(name, 8192) as new:
            assert new.buffer[:] == bytes(8192)
            new.buffer[1] = 7
            assert old.buffer[:2] == b"\x09\0", "who has the old one open keeps it"


def test_what_does_not_exist_cannot_be_attached(name):
    with pytest.raises(ConfigurationError, match="its job has ended; or .* RemoveIPC=no"):
        Segment.attach(name)


def test_what_others_can_open_is_not_attached(name):
    with Segment.create(name, 4096):
        path(name).chmod(0o640)
        with pytest.raises(ConfigurationError, match="another user owns it or may access it"):
            Segment.attach(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_another_user_is_not_attached(name):
    with Segment.create(name, 4096):
        os.chown(path(name), 65534, 65534)
        with pytest.raises(ConfigurationError, match="another user owns it or may access it"):
            Segment.attach(name)


def test_too_much_is_refused_with_both_sizes_and_leaves_nothing(name):
    wanted = 1 << 50  # more than any machine has, and than could be mapped
    with pytest.raises(BackendUnavailableError) as caught:
        Segment.create(name, wanted)
    text = str(caught.value)
    assert "needs 1125899907 MB" in text
    assert "MB free" in text
    assert "--shm-size" in text
    assert not path(name).exists()


def test_more_than_the_machine_has_is_refused_before_a_page_is_taken(name, monkeypatch):
    """The kernel would take pages until there are none, and then kill processes."""
    monkeypatch.setattr(segments, "available_memory", lambda: 1 << 27)
    with pytest.raises(BackendUnavailableError, match="the machine 134 MB of memory"):
        Segment.create(name, (1 << 27) + 4096)
    assert not path(name).exists()


def test_bytes_are_locked_one_by_one(pair):
    one, two = pair
    for byte in range(10):
        assert (one, two)[byte % 2].try_lock(byte)
    one.unlock(4)
    assert [byte for byte in range(10) if two.locked(byte)] == [0, 2, 6, 8]
    assert [byte for byte in range(10) if one.locked(byte)] == [1, 3, 5, 7, 9]


def test_unlocking_what_is_free_or_anothers_does_nothing(pair):
    one, two = pair
    one.unlock(3)
    one.try_lock(5)
    two.unlock(5)
    assert two.locked(5)


def test_closing_frees_the_locks_of_this_handle_alone(name):
    with Segment.create(name, 4096) as one:
        two, three = Segment.attach(name), Segment.attach(name)
        two.try_lock(1)
        three.try_lock(2)
        two.close()
        assert not one.locked(1)
        assert one.locked(2)
        three.close()


def test_another_process_is_kept_out_and_let_in(pair, other_process):
    one, _ = pair
    assert not one.try_lock(7)
    assert one.locked(7)
    other_process.stdin.write("\n")
    other_process.stdin.flush()
    assert other_process.stdout.readline() == "unlocked\n"
    assert one.buffer[0] == 1
    assert one.try_lock(7)


def test_a_killed_process_holds_no_lock(pair, other_process):
    one, _ = pair
    assert one.locked(7)
    other_process.kill()
    assert other_process.wait() == -9
    assert not one.locked(7)
    assert one.try_lock(7)


def test_a_segment_in_use_is_not_abandoned(name):
    assert not abandoned(name), "what does not exist is not abandoned"
    one = Segment.create(name, 4096)
    two = Segment.attach(name)
    assert not abandoned(name)
    one.close()
    assert not abandoned(name)
    two.close()
    assert abandoned(name)
    assert path(name).exists(), "asking removes nothing"
    Segment.unlink(name)
    assert not abandoned(name)


def test_processes_started_meanwhile_do_not_keep_it_in_use(name):
    segment = Segment.create(name, 4096)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False):
        segment.close()
        assert abandoned(name)


def test_arrays_outlive_close_but_locks_and_use_do_not(name):
    segment = Segment.create(name, 4096)
    segment.try_lock(3)
    array = np.frombuffer(segment.buffer, "float32", 10)
    array[:] = 2.5
    segment.close()
    assert segment.closed
    np.testing.assert_array_equal(array, 2.5)
    array[0] = 1.0
    with Segment.attach(name) as again:
        assert again.try_lock(3)
        assert np.frombuffer(again.buffer, "float32", 1)[0] == 1.0
    assert abandoned(name)


@pytest.mark.parametrize("ask", ["try_lock", "unlock", "locked"])
def test_a_segment_that_another_thread_closes_during_the_call_is_closed(name, monkeypatch, ask):
    segment = Segment.create(name, 4096)
    fcntl = segments.fcntl.fcntl

    def closed_meanwhile(file, *args):
        number = file.fileno()
        monkeypatch.undo()
        segment.close()  # as by another thread, between the look at the number and the call of the kernel
        return fcntl(number, *args)

    monkeypatch.setattr(segments.fcntl, "fcntl", closed_meanwhile)
    if ask == "try_lock":
        with pytest.raises(ConfigurationError, match="closed"):
            segment.try_lock(3)
    else:
        assert not getattr(segment, ask)(3)
