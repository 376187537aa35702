"""Event files for TensorBoard, read back by the one who defined them, or by tensorboardX's own reader of records."""

import contextlib
import functools
import math
import struct
import subprocess
import sys
import time

import pytest
from needing import needs_package
from scripts_here import script_path

from platoon_base.cli.observers import Observed, TrackedRun
from platoon_base.cli.trackers.tensorboard import Tracker
from platoon_base.controller.outcome import Snapshot
from platoon_base.coordination.roster import Participant, Phase
from platoon_base.coordination.story import Story
from platoon_base.shm.job_state import Progress

pytestmark = pytest.mark.base

needs_writer = needs_package("tensorboardX", "pip install 'platoon-plugins[tensorboard]'")


def events_in(folder):
    """Yield all events in the files of a folder: records of length, CRC, data, CRC."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            yield Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]


COUNTS = {"workers", "failures", "checkpoints", "settings/text_summary"}


def scalars(folder):
    """Return (name, step, value) of all events in the files of a folder, but for the counts of the job."""
    return [
        (value.tag, event.step, round(value.simple_value, 4))
        for event in events_in(folder)
        for value in event.summary.value
        if value.tag not in COUNTS
    ]


def event_files(folder, every_s):
    """Return the observer that ``--tensorboard`` makes."""
    job = Observed("train.py", "train.py", folder, Story())
    return TrackedRun("TensorBoard", lambda name, logs: Tracker(name, logs, folder), job, every_s)


@pytest.fixture
def snapshot():
    """Snapshots of a worker that makes ten steps a second, none of which is overdue on a busy machine."""
    return functools.partial(_snapshot, time.monotonic() + 600.0)


def _snapshot(started, steps, loss, reported):
    roster = [Participant(rank, True, phase=Phase.TRAINING) for rank in range(2)]
    progress = {
        0: Progress(1, steps, 0, loss, 0.0, started, started + steps / 10),
        1: Progress(0, 0, 0, math.nan, 0.0, 0.0, 0.0),
    }
    return Snapshot(roster, progress, reported, None, 1.0)


@needs_writer
def test_workers_and_reported_values_are_runs_of_their_own(tmp_path, snapshot):
    with contextlib.closing(event_files(tmp_path, every_s=0.0)) as events:
        events.take(snapshot(0, math.nan, {}))
        events.take(snapshot(100, 0.5, {"val": 0.25, "note": "text"}))
        events.take(snapshot(100, 0.5, {"val": 0.25, "note": "text"}))
        events.take(snapshot(300, 0.125, {"val": 0.25, "steps": 7}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["center", "worker0"]
    assert scalars(tmp_path / "center") == [("val", 100, 0.25), ("steps", 300, 7.0)]
    of_worker = scalars(tmp_path / "worker0")
    assert [each for each in of_worker if each[0] in ("loss", "epoch")] == [
        ("loss", 100, 0.5), ("epoch", 100, 1.0), ("loss", 300, 0.125), ("epoch", 300, 1.0)
    ]  # fmt: skip
    assert ("batches_per_second", 300, 10.0) in of_worker  # not of the first steps
    assert "share_of_synchronization" in {name for name, _, _ in of_worker}


@needs_writer
def test_the_end_of_a_course_is_written(tmp_path, snapshot):
    with contextlib.closing(event_files(tmp_path, every_s=1e6)) as events:
        events.take(snapshot(100, 0.5, {}))
        events.take(snapshot(300, 0.125, {}))
    assert [each[1:] for each in scalars(tmp_path / "worker0") if each[0] == "loss"] == [(100, 0.5), (300, 0.125)]


@needs_writer
def test_a_course_that_is_written_only_at_the_end_is_in_the_file(tmp_path, snapshot):
    events = event_files(tmp_path, every_s=1e6)
    events.take(snapshot(0, 0.5, {}))
    events.take(snapshot(300, 0.125, {}))
    events.close()
    assert [each[1:] for each in scalars(tmp_path / "worker0") if each[0] == "loss"] == [(300, 0.125)]


@needs_writer
@pytest.mark.parametrize("clock", [0, -3600], ids=["within-a-second", "set-back"])
def test_files_of_a_job_that_is_started_again_sort_after_those_before(tmp_path, snapshot, monkeypatch, clock):
    """TensorBoard reads the files of a run in the order of their names, and drops what later files repeat."""
    now = time.time_ns()
    for start in range(5):
        monkeypatch.setattr(time, "time_ns", lambda start=start: now + start * (10**6 + clock * 10**9))
        with contextlib.closing(event_files(tmp_path, every_s=0.0)) as events:
            events.take(snapshot(100 * (start + 1), 0.5, {"val": float(start)}))
    assert [step for name, step, _ in scalars(tmp_path / "worker0") if name == "loss"] == [100, 200, 300, 400, 500]
    assert scalars(tmp_path / "center") == [("val", 100 * (start + 1), start) for start in range(5)]


@needs_writer
def test_a_course_begins_anew_only_where_steps_are_repeated(tmp_path, snapshot):
    """TensorBoard drops what stands at the step of a beginning, and behind it."""
    with contextlib.closing(event_files(tmp_path, every_s=0.0)) as events:
        for value, steps in enumerate([100, 100, 200, 150, 250]):
            events.take(snapshot(steps, 0.5, {"val": float(value)}))
    begun = [event.step for event in events_in(tmp_path / "center") if event.session_log.status == 1]  # START
    assert begun == [100, 150]


REPORTS = script_path("trackers_train")


@needs_writer
def test_a_job_writes_them(platoon, tmp_path):
    done = platoon("launch", "-n", 2, "--tensorboard", "board", REPORTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert scalars(tmp_path / "board" / "center") == [("val_loss", 5, 0.25)]
    for rank in range(2):
        of_worker = scalars(tmp_path / "board" / f"worker{rank}")
        assert ("loss", 5, 0.75) in of_worker
        used = {name: value for name, _, value in of_worker if name.startswith("system/")}
        assert used.keys() == {"system/cpu_percent", "system/memory_mb"}
        assert min(used.values()) > 0


@needs_writer
@pytest.mark.parametrize("run", ["worker0", "center"])
def test_a_job_goes_on_where_they_cannot_be_written(platoon, tmp_path, run):
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / run).write_text("a file where a folder must be")
    done = platoon("launch", "-n", 2, "--tensorboard", "board", REPORTS)
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert said.count("WARNING stopped writing for TensorBoard: FileExistsError: ") == 1


@needs_writer
def test_a_job_goes_on_where_the_disk_is_full(write_script, tmp_path):
    """Here by a limit on the size of the launcher's files, from the first of these on."""
    train = script_path("tensorboard_a_job_goes_on_where_the_disk_is_full")
    command = [sys.executable, script_path("tensorboard_full_disk"), "launch", "-n", "1", "--tensorboard", "board"]
    done = subprocess.run([*command, train], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert said.count("WARNING stopped writing for TensorBoard: OSError: [Errno 27]") == 1
    assert "Exception in thread" not in done.stderr
