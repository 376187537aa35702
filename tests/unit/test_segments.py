"""Shared memory and its locks, between two handles and between two processes, also when one is killed."""

import itertools
import os
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
from scripts_here import script_path

from platoon_base.collectives import host_exchange
from platoon_base.errors import BackendUnavailableError, ConfigurationError, LayoutMismatchError
from platoon_base.job.files import segment_prefix
from platoon_base.layout import Layout
from platoon_base.shm import segments
from platoon_base.shm.schema import PAGE, Part, Schema
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


# Segments with a header.


FIELDS = [("rows", "u4"), ("count", "u8")]
LAYOUT = Layout.of([np.zeros((2, 3)), np.zeros(5, "float32")])


def parts(header, layout):
    yield Part("flags", "u1", (int(header["rows"]),))
    yield Part("values", layout, (), PAGE)
    yield Part("states", layout, (2,))


def schema(magic=b"PLTNTEST", version=3, fields=FIELDS, parts=parts):
    return Schema("a test", magic, version, fields, parts)


def test_parts_keep_what_is_written_and_are_aligned():
    declared = schema()
    memory = bytearray(declared.place(LAYOUT, rows=3).nbytes)
    views = declared.write(memory, LAYOUT, rows=3)
    arrays = [views.flags, *itertools.chain(views.values, *views.states)]
    for number, array in enumerate(arrays, 1):
        array[...] = number
    views.header["count"] = 2**40
    found = declared.read(memory, LAYOUT, rows=3)
    again = [found.flags, *itertools.chain(found.values, *found.states)]
    assert [array.shape for array in again] == [(3,), (2, 3), (5,), (2, 3), (5,), (2, 3), (5,)]
    assert [set(array.ravel().tolist()) for array in again] == [{number} for number in range(1, 8)]
    assert found.header["count"] == 2**40
    assert (found.at["values"], found.at["flags"] % 64, found.at["states"] % 64) == (PAGE, 0, 0)


REFUSED = {
    "another kind": (lambda memory: schema(b"PLTNMORE").read(memory, LAYOUT), "something else"),
    "too short": (lambda memory: schema().read(memory[:20], LAYOUT), "something else"),
    "another version": (lambda memory: schema(version=4).read(memory, LAYOUT), "it has version 3, this process 4"),
    "another value": (lambda memory: schema().read(memory, LAYOUT, rows=4), "its rows is 3, of this process 4"),
    "another model": (lambda memory: schema().read(memory, Layout.of([np.zeros(11)])), "its parts differ"),
    "a changed field": (
        lambda memory: schema(fields=[*FIELDS[:1], ("count", "u4")]).read(memory, LAYOUT),
        "its parts differ",
    ),
    "another part": (
        lambda memory: schema(parts=lambda *given: [*parts(*given)][:2]).read(memory, LAYOUT),
        "its parts differ",
    ),
    "a shorter part": (lambda memory: schema().read(memory[:-PAGE], LAYOUT), "its parts differ"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_memory_of_another_declaration_is_refused(what):
    memory = bytearray(schema().place(LAYOUT, rows=3).nbytes)
    schema().write(memory, LAYOUT, rows=3)
    read, why = REFUSED[what]
    with pytest.raises(LayoutMismatchError, match=f"is not a test .*{why}.*run the same script"):
        read(memory)


def test_a_segment_is_closed_where_it_is_refused():
    name = f"{segment_prefix()}test{os.getpid()}-schema"
    made = schema().create(name, LAYOUT, rows=3)
    made.flags[:] = 7
    found = schema().attach(name, LAYOUT)
    assert found.flags.tolist() == [7, 7, 7]
    found.segment.close()
    with pytest.raises(LayoutMismatchError):
        schema(version=4).attach(name, LAYOUT)
    made.segment.close()
    assert abandoned(name)
    Segment.unlink(name)


@pytest.mark.skipif(not host_exchange.HAVE_FUSED, reason="without the C extension there is nothing to agree with")
def test_the_c_extension_has_the_same_offsets():
    fields = {("board", name): offset for name, (_, offset) in host_exchange.BOARD.fields.items()}
    fields |= {("line", name): offset for name, (_, offset) in host_exchange.LINE.fields.items()}
    assert {(of, name): 64 * (of == "board") + offset for (of, name), offset in fields.items()} == {
        tuple(key.split(".")): at for key, at in host_exchange.OFFSETS.items() if key.startswith(("board.", "line."))
    }
    words = {key: at for key, at in host_exchange.OFFSETS.items() if key.startswith("state.")}
    assert words == {f"state.{name}": 8 * index for index, name in enumerate(host_exchange.STATE)}
    assert host_exchange.OFFSETS["line"] == host_exchange.LINE.itemsize
    assert host_exchange.OFFSETS["state"] <= 8 * 40
    group = host_exchange.GroupSegment.create(f"{segment_prefix()}test{os.getpid()}-offsets", (0, 1), 4096)
    assert group.memory.at["board"] == 64
    group.close()
    group.unlink()
