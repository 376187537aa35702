"""Checkpoints: plain NumPy files, whole or refused, of which the newest whole one is found."""

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripts_here import script_path
from watching import until

from platoon_base.checkpoints.files import (
    FORMAT,
    About,
    Checkpoint,
    CheckpointFolder,
    check_checkpoint,
    newest_in,
    read_checkpoint,
    require_alike,
)
from platoon_base.checkpoints.writer import CheckpointWriter, Saving, StallTimer
from platoon_base.cli.run_files import log_folder
from platoon_base.errors import ConfigurationError, LayoutMismatchError
from platoon_base.layout import Layout
from platoon_base.rules import EASGD
from platoon_base.sharding import Position
from platoon_base.system.folder_lock import LOCK_FILE, FolderLock, is_locked, locks_stay_on_this_host

pytestmark = pytest.mark.base


def make(value=0.0, size=2):
    """Make a checkpoint with two parameters and one state, all of which tell ``value``."""
    center = [np.full((3, 4), value, "float32"), np.full((), value, "float64"), np.zeros((0, 2), "float16")]
    about = About(
        seed=7,
        size=size,
        seconds=1.5,
        rule="SlowMo",
        positions={rank: Position(2, 5, 25 + rank) for rank in range(size)},
        kept={0: {"best": b"\0\xff"}},
        reported={"loss": 0.25, "epoch": 3, "note": "é", "unknown": None},
    )
    return Checkpoint.of(about, Layout.of(center, ["W", "b", "none"]), center, [[array + 1 for array in center]])


def same(one, other):
    arrays = [[*checkpoint.center, *checkpoint.states[0]] for checkpoint in (one, other)]
    return one.about == other.about and all(
        a.dtype == b.dtype and a.shape == b.shape and (a == b).all() for a, b in zip(*arrays)
    )


def newest(folder):
    return read_checkpoint(folder.newest()[0])


@pytest.fixture
def folder(tmp_path):
    kept = CheckpointFolder(tmp_path / "checkpoints")
    yield kept
    kept.close()


def test_what_was_saved_is_read(folder):
    path = folder.save(make(0.5))
    assert same(read_checkpoint(path), make(0.5))
    found, about = folder.newest()
    assert found == path
    assert about == check_checkpoint(path) == make(0.5).about


def test_plain_numpy_reads_it(folder):
    with np.load(folder.save(make(0.5))) as file:
        about = json.loads(file["about"].tobytes())
        np.testing.assert_array_equal(file["center/0"], np.full((3, 4), 0.5, "float32"))
        np.testing.assert_array_equal(file["state 0/1"], 1.5)
    assert about["format"] == FORMAT
    assert about["parameters"][0] == ["W", [3, 4], "float32"]
    assert about["positions"]["1"] == [2, 5, 26]
    assert about["reported"] == {"loss": 0.25, "epoch": 3, "note": "é", "unknown": None}


def test_a_value_that_json_does_not_know_is_left_out(folder):
    checkpoint = make()
    checkpoint.about.reported["loss"] = float("nan")
    assert read_checkpoint(folder.save(checkpoint)).about.reported["loss"] is None


def test_there_are_at_most_two(folder):
    for value in range(5):
        folder.save(make(value))
    assert folder.numbers() == [4, 5]
    assert newest(folder).center[1] == 4
    assert sorted(os.listdir(folder.path)) == [LOCK_FILE, "checkpoint-00000004.npz", "checkpoint-00000005.npz"]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_byte_is_found_or_changes_nothing(tmp_path, data):
    path = tmp_path / "checkpoint.npz"
    if not path.exists():
        kept = CheckpointFolder(tmp_path)
        os.replace(kept.save(make(0.5)), path)
        kept.close()
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    bit = data.draw(st.integers(0, 7))
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    try:
        found = read_checkpoint(damaged)
    except ConfigurationError:
        return
    assert same(found, make(0.5))


@pytest.mark.parametrize("length", [0, 1, 100, -1, -30, -200])
def test_a_cut_file_is_refused(folder, length):
    path = folder.save(make())
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ConfigurationError, match="is not a complete checkpoint"):
        read_checkpoint(path)


def test_nothing_is_unpickled(tmp_path):
    path, witness = tmp_path / "evil.npz", tmp_path / "witness"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(witness),)

    np.savez(path, about=np.array([Evil()], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigurationError, match="is not a complete checkpoint"):
        read_checkpoint(path)
    assert not witness.exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": FORMAT + 1}, f"has format {FORMAT + 1}, and this version reads format {FORMAT}"),
        ({"parameters": [*make().about.parameters, ("c", (), "float64")]}, "because 'center/3' is missing"),
        ({"states": 2}, "because 'state 1/0' is missing"),
        ({"parameters": [("W", (4, 3), "float32"), *make().about.parameters[1:]]}, r"W is float32\[3, 4\] in it"),
    ],
)
def test_what_does_not_fit_together_is_refused(folder, change, complaint):
    path = folder.save(make())
    with np.load(path) as file:
        arrays = dict(file)
    about = {**json.loads(arrays.pop("about").tobytes()), **change}
    np.savez(path, about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8), **arrays)
    with pytest.raises(ConfigurationError, match=complaint):
        read_checkpoint(path)


def test_the_one_before_a_damaged_one_is_used(folder):
    folder.save(make(1))
    damaged = folder.save(make(2))
    damaged.write_bytes(damaged.read_bytes()[:500])
    assert folder.newest()[0] == folder.file(1)
    assert same(newest(folder), make(1))
    # The damaged one is out of the way: both of the next two are whole.
    assert folder.save(make(3)) == folder.file(2)
    assert folder.numbers() == [1, 2]
    assert damaged.with_suffix(".damaged").exists()
    folder.save(make(4))
    folder.save(make(5))  # two newer ones are there
    assert not damaged.with_suffix(".damaged").exists()


def test_numbers_may_have_more_than_eight_digits(folder):
    folder.save(make(1)).rename(folder.file(99_999_999))
    later = folder.save(make(2))
    assert later == folder.file(100_000_000)
    assert folder.newest()[0] == newest_in(folder.path) == later


@pytest.mark.timeout(200)
def test_a_named_pipe_in_the_place_of_a_checkpoint_is_passed_over(folder):
    folder.save(make(1))
    os.mkfifo(folder.file(2))
    assert same(newest(folder), make(1))
    folder.file(1).unlink()
    with pytest.raises(ConfigurationError, match="00000002.npz is a named pipe or a device, not a file"):
        folder.newest()
    assert folder.file(2).exists()


def poison(path, array, element, value):
    """Put a value into an array of a checkpoint, with the right check sum."""
    with np.load(path) as file:
        arrays = dict(file)
    arrays[array].flat[element] = value
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("array", "element", "value", "complaint"),
    [
        ("center/0", 5, np.nan, "element 5 of W is a NaN or an infinity"),
        ("center/1", 0, -np.inf, "element 0 of b is a NaN or an infinity"),
        ("state 0/0", 11, np.inf, "element 11 of the rule's state 0 of W is a NaN or an infinity"),
    ],
)
def test_what_is_not_finite_is_not_resumed(folder, array, element, value, complaint):
    poison(folder.save(make(1)), array, element, value)
    with pytest.raises(ConfigurationError, match=complaint):
        read_checkpoint(folder.file(1))
    with pytest.raises(ConfigurationError, match=f"is usable: .*{complaint}"):
        folder.newest()
    folder.save(make(2))
    poison(folder.save(make(3)), array, element, value)
    assert same(newest(folder), make(2))


def test_what_is_not_finite_is_not_saved(folder):
    """Who writes into the center's memory can put anything there; the good checkpoints stay."""
    folder.save(make(1))
    for of in ("center", "states"):
        bad = make(2)
        (bad.center if of == "center" else bad.states[0])[0][2, 1] = np.nan
        with pytest.raises(
            ConfigurationError, match="element 9 (of the rule.s state 0 )?of W in the center is a NaN or an infinity"
        ):
            folder.save(bad)
    assert folder.numbers() == [1]
    far = np.zeros(300_000, "float32")  # more than are looked at together
    far[-1] = np.inf
    with pytest.raises(ConfigurationError, match="element 299999 of "):
        folder.save(Checkpoint.of(About(seed=0, size=1, seconds=0.0), Layout.of([far]), [far], []))


def test_one_of_a_newer_version_is_not_passed_over(folder):
    folder.save(make(1))
    newer = make(2)
    path = folder.save(newer._replace(about=About(**{**_fields(newer.about), "format": FORMAT + 1})))
    with pytest.raises(ConfigurationError, match="use the version that wrote it"):
        folder.newest()
    assert path.exists()


def test_one_that_cannot_be_read_now_is_passed_over_and_stays(folder):
    folder.save(make(1))
    folder.file(2).mkdir()
    assert same(newest(folder), make(1))
    assert folder.file(2).exists()


def test_damaged_ones_alone_are_an_error_and_stay_where_they_are(folder):
    for value in (1, 2):
        folder.save(make(value)).write_bytes(b"nothing")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"no checkpoint in .* is usable: .*00000002.*00000001"):
            folder.newest()


def test_a_folder_has_one_writer(folder):
    with pytest.raises(ConfigurationError, match="another job writes its checkpoints"):
        CheckpointFolder(folder.path)
    folder.close()
    folder.close()
    CheckpointFolder(folder.path).close()


HOLD = script_path("checkpoints_hold")


def test_a_writer_on_another_host_is_noticed_too(tmp_path):
    """NFS tells other hosts of locks on files that are open for writing, and of none on folders."""
    CheckpointFolder(tmp_path).close()
    command = [sys.executable, HOLD, str(tmp_path / LOCK_FILE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(ConfigurationError, match="another job writes its checkpoints"):
            CheckpointFolder(tmp_path)
        holder.communicate("\n")
    CheckpointFolder(tmp_path).close()


@pytest.mark.parametrize("mode", [0o755, 0o750])
@pytest.mark.parametrize("kind", [CheckpointFolder, FolderLock])
def test_who_may_only_read_a_folder_keeps_no_job_out(tmp_path, kind, mode):
    """Any user who may read it can lock it. The lock of a job is on a file that others cannot open."""
    tmp_path.chmod(mode)
    (tmp_path / LOCK_FILE).touch(0o644)  # as that of a folder that was copied
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert not is_locked(tmp_path)
        held = kind(tmp_path)
        assert is_locked(tmp_path)
        held.close()
        assert (tmp_path / LOCK_FILE).stat().st_mode & 0o777 == 0o600
    finally:
        os.close(fd)
    tmp_path.chmod(0o700)  # systemd-tmpfiles leaves a locked folder alone
    held = kind(tmp_path)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(fd)
        held.close()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_where_nothing_can_be_locked_a_warning_says_so(tmp_path, monkeypatch, caplog, number):
    """As on Lustre mounted without flock, and on NFS without its lock daemon."""

    def flock(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with log_folder(tmp_path):
        assert not is_locked(tmp_path)
    CheckpointFolder(tmp_path).close()
    assert caplog.text.count(f"without locks ({os.strerror(number)})") == 2


NFS = "rw,vers=4.2,rsize=1048576,hard,proto=tcp,sec=sys,clientaddr=10.0.0.2,local_lock={},addr=10.0.0.1"


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        ("ext4 /dev/vda1 rw", ""),
        ("tmpfs tmpfs rw,size=1024k", ""),
        (f"nfs4 10.0.0.1:/home {NFS.format('none')}", ""),
        (f"nfs4 10.0.0.1:/home {NFS.format('all')}", "nfs4 with local_lock=all"),
        (f"nfs 10.0.0.1:/home {NFS.format('flock')}", "nfs with local_lock=flock"),
        (f"nfs 10.0.0.1:/home {NFS.format('posix')}", ""),
        ("lustre mds@tcp:/scratch rw,flock,lazystatfs", ""),
        ("lustre mds@tcp:/scratch rw,localflock,lazystatfs", "lustre with localflock"),
        ("cifs //server/home rw,nobrl,vers=3.1.1", "cifs with nobrl"),
        ("fuse.sshfs me@host: rw,user_id=0", "fuse.sshfs"),
    ],
)
def test_file_systems_that_keep_locks_to_one_host_are_known(tmp_path, mount, why):
    """Lines of /proc/self/mountinfo; the one of this folder's device counts, the last of several."""
    device = tmp_path.stat().st_dev
    here = f"{os.major(device)}:{os.minor(device)}"
    lines = [
        "22 1 0:4095 / /other rw,relatime shared:1 - nfs4 10.0.0.1:/other rw,local_lock=all",
        f"23 1 {here} / /hidden rw,relatime shared:1 - afs AFS rw",
        f"24 1 {here} / /mnt\\040here rw,relatime shared:2 master:1 - {mount}",
    ]
    assert locks_stay_on_this_host(tmp_path, "\n".join(lines)) == why


def test_no_link_of_a_stranger_is_written_through(folder, tmp_path):
    """In a folder that others may write to; what killed writers have left is removed."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("unfinished-checkpoint.npz", "unfinished-checkpoint-0123.npz", "checkpoint-00000001.npz"):
        (folder.path / name).symlink_to(precious)
    folder.save(make(1.0))
    folder.save(make(2.0))
    assert precious.read_text() == "precious"
    left = {path.name for path in folder.path.iterdir()}
    assert left == {".lock", "checkpoint-00000002.npz", "checkpoint-00000003.npz"}
    assert same(newest(folder), make(2.0))


def test_a_failure_leaves_the_ones_before(folder):
    folder.save(make(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            folder.save(make(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(os.listdir(folder.path)) == [LOCK_FILE, "checkpoint-00000001.npz"]
    assert same(newest(folder), make(1))


WRITER = script_path("checkpoints_writer")


def test_a_writer_killed_at_any_moment_leaves_a_whole_one(tmp_path):
    latest = 0
    for attempt in range(12):
        command = [sys.executable, WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            for _ in range(3):
                latest = int(writer.stdout.readline())
            # A moment within the next save, another one each time.
            end = time.perf_counter() + attempt * 0.0004
            while time.perf_counter() < end:
                pass
            writer.send_signal(signal.SIGKILL)
            latest = max([latest, *map(int, writer.stdout.read().split())])
        kept = CheckpointFolder(tmp_path)
        center = newest(kept).center[0]
        kept.close()
        assert (center == center[0]).all()
        assert center[0] in (latest, latest + 1)
        latest = int(center[0])


def test_where_each_rank_goes_on():
    about = About(seed=0, size=3, seconds=0.0, positions={0: Position(4, 7, 47), 1: Position(3, 9, 39)})
    assert about.position(0, 3) == (4, 7, 47)
    assert about.position(2, 3) == (0, 0, 0)
    assert about.position(0, 2) == (0, 0, 43)
    bound = About(**{**_fields(about), "size": 2, "bound": True})
    assert [bound.position(rank, 2) for rank in range(2)] == [(3, 9, 39)] * 2
    whole = About(**{**_fields(about), "size": 2})
    assert [whole.position(rank, 4) for rank in range(4)] == [(3, 0, 21)] * 4


def _fields(about):
    return {name: getattr(about, name) for name in about.__struct_fields__}


@dataclass(frozen=True)
class SlowMo:
    """A rule with one buffer beside the center, as that of `make`."""

    rate: float = 1.0
    center_state = ("u",)


@dataclass(frozen=True)
class Other(SlowMo):
    pass


def test_another_model_or_rule_is_refused():
    checkpoint = make()
    about, layout = checkpoint.about, checkpoint.about.layout
    require_alike(about, layout, SlowMo())
    with pytest.raises(LayoutMismatchError, match=r"got V float32\[3, 4\] as parameter 0, and the checkpoint's is W"):
        require_alike(about, Layout.of(checkpoint.center, ["V", "b", "none"]), SlowMo())
    for rule, got in ((Other(), "Other with 1 buffers"), (EASGD(0.5), "EASGD with 0 buffers")):
        with pytest.raises(ConfigurationError, match=f"got the rule {got}.* of the rule SlowMo .*numpy.load"):
            require_alike(about, layout, rule)


def test_a_folder_whose_locks_stay_on_this_host_is_warned_of(tmp_path, monkeypatch, caplog):
    why = "nfs4 with local_lock=all"
    monkeypatch.setattr("platoon_base.system.folder_lock.locks_stay_on_this_host", lambda path: why)
    CheckpointFolder(tmp_path).close()
    assert f"is on a file system ({why}) whose locks other hosts may not see" in caplog.text


def test_a_folder_that_was_removed_is_made_anew(folder, tmp_path, caplog):
    folder.save(make(1))
    folder.path.rename(tmp_path / "removed")
    for value in (1, 2):
        folder.save(make(value))
    assert "was removed and has been created again" in caplog.text
    assert same(newest(folder), make(2))
    with pytest.raises(ConfigurationError, match="another job writes its checkpoints"):
        CheckpointFolder(folder.path)


def test_another_folder_in_its_place_is_not_written_to(folder, tmp_path):
    folder.save(make(1))
    folder.path.rename(tmp_path / "moved")
    folder.path.mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match="not the folder that it was at the start"):
            folder.save(make(2))
    assert os.listdir(folder.path) == []
    folder.path.rmdir()
    (tmp_path / "moved").rename(folder.path)
    folder.save(make(2))
    assert folder.numbers() == [1, 2]


def test_bytes_are_counted_while_they_are_written(folder):
    """What waits for the disk asks whether it gets on: more than once in a file, and with every file."""
    center = [np.zeros(10_000_000, "float64")]
    counts = []

    class Watched(CheckpointFolder):
        @property
        def written_bytes(self):
            return counts[-1]

        @written_bytes.setter
        def written_bytes(self, value):
            counts.append(value)

    folder.close()
    watched = Watched(folder.path)
    about = About(seed=0, size=1, seconds=0.0)
    path = watched.save(Checkpoint.of(about, Layout.of(center), center, []))
    watched.close()
    assert counts[-1] >= path.stat().st_size >= 80_000_000
    assert len(counts) > 4  # the first is 0, before anything is written
    assert max(b - a for a, b in zip(counts, counts[1:])) <= 40_000_000


class Center:
    """Two parameters and a state that do not change; see `Readable`."""

    def snapshot(self, may_wait):
        checkpoint = make(0.5)
        return checkpoint.center, checkpoint.states

    def close(self):
        pass


def write_all(writer, layouts):
    """Write one checkpoint after the other, without a center where the layout is None."""
    for layout in layouts:
        writer.begin(make().about, layout)
        until(lambda: not writer.writing)


@pytest.mark.parametrize("files", [1, 3])
def test_too_little_room_for_later_checkpoints_is_said_at_the_first(folder, monkeypatch, caplog, files):
    """Two are kept, and a third lies beside them while it is written."""
    size_bytes = folder.save(make(0.5)).stat().st_size
    usage = shutil.disk_usage(folder.path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=files * size_bytes))
    writer = CheckpointWriter(Saving(folder, 1000.0), lambda layout: Center())
    write_all(writer, [None, make().about.layout, make().about.layout])
    writer.close()
    assert writer.tally == (3, 0, "")
    assert caplog.text.count("later ones will fail: make room") == (files < 2)


@pytest.mark.parametrize("resumed", [False, True])
def test_one_without_a_center_takes_no_place_of_one_that_has_it(folder, resumed):
    """Workers that have let go of their parameters, or a resumed job before it shares them."""
    writer = CheckpointWriter(Saving(folder, 1000.0), lambda layout: Center(), resumed)
    write_all(writer, [None, None] if resumed else [None, make().about.layout, None, None])
    writer.close()
    assert writer.tally.written == (0 if resumed else 2)


def test_the_first_with_a_center_that_is_not_written_is_a_problem(folder, monkeypatch):
    """Those before it are small, and say nothing about the room for it."""
    writer = CheckpointWriter(Saving(folder, 1000.0), lambda layout: Center())
    write_all(writer, [None])

    def save(checkpoint):
        raise OSError("no room")

    monkeypatch.setattr(folder, "save", save)
    write_all(writer, [make().about.layout])
    assert "no room. Make room" in writer.take_problem()
    write_all(writer, [make().about.layout])
    writer.close()


def test_the_last_one_is_written_after_the_one_before(folder, monkeypatch):
    writer = CheckpointWriter(Saving(folder, 1000.0), lambda layout: Center())
    save, begun = folder.save, []

    def slowly(checkpoint):
        begun.append(folder.numbers())
        time.sleep(0.2)
        return save(checkpoint)

    monkeypatch.setattr(folder, "save", slowly)
    writer.begin(make().about, make().about.layout)
    writer.end(make().about, make().about.layout)
    until(lambda: not writer.writing)
    assert begun == [[], [1]]


def test_what_gets_on_is_waited_for_however_long_it_takes():
    patience = StallTimer(300)
    assert not any(patience.over(now=1000 + 299 * i, progress=i) for i in range(100))
    start = 1000 + 299 * 99
    assert not patience.over(start + 300, 99)
    assert patience.over(start + 301, 99)
    assert not patience.over(start + 302, 100)
