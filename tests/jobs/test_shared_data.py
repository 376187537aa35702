"""Shared data in jobs of real processes: one memory for all, and nothing left of it."""

import os
import re
import subprocess
import sys

import pytest
from watching import await_file

from platoon_base.shm.segments import SHM_FOLDER

pytestmark = pytest.mark.base

PREAMBLE = """
import os, signal, sys
import numpy as np
from platoon_base import connect
from platoon_base.data import SharedData
from platoon_base.errors import *
from platoon_base.job.joining import files_of
from watching import await_file
from pathlib import Path
folder = Path(sys.argv[1])
worker = connect()
rank = worker.global_rank
rows = np.random.default_rng(0).normal(size=(1000, 33)).astype(np.float32)

def names():
    return sorted(name for name in os.listdir("/dev/shm") if files_of(worker).job in name and "-data-" in name)
"""


def test_the_first_worker_loads_and_all_excerpt_from_the_same_memory(run_job):
    outcome = run_job(
        PREAMBLE
        + """
def load():
    print("loading")
    return rows

data = SharedData(load)
indices = np.random.default_rng(1).permutation(1000)[:101]
part = data.excerpt_part(indices)
bounds = [0, 33, 67, 101]
np.testing.assert_array_equal(part, rows[indices[bounds[rank] : bounds[rank + 1]]])
try:
    data.excerpt([3, 1000])
except IndexError as exc:
    print("refused:", exc)
for change in (lambda: data.array.__setitem__(0, 1), lambda: data.array.setflags(write=True)):
    try:
        change()
    except ValueError as exc:
        print("read-only")
worker.barrier()
(name,) = names()
lines = [line for line in open("/proc/self/maps") if name in line]
assert all(line.split()[1] == "r--s" for line in lines) and lines, lines
print("made here:", data.made_here, "inode", lines[0].split()[4])
worker.barrier()
""",
        3,
    ).require_success()
    logs = "\n".join(outcome.logs)
    assert logs.count("loading") == logs.count("made here: True") == 1
    assert logs.count("made here: False") == 2
    assert len(set(re.findall(r"inode (\d+)", logs))) == 1
    assert logs.count("refused: got index 1000 at position 1 of the list: there are 1000 rows") == 3
    assert logs.count("read-only") == 6


def test_a_worker_writes_and_resizes_and_the_others_see_it(run_job):
    outcome = run_job(
        PREAMBLE
        + """
data = SharedData(rows, "train")
old = data.array
worker.barrier()
for count in (5000, 70_000, 10, 1200):
    if rank == 1:
        data.resize(count)
        with data.writing() as writable:
            writable[-1] = count
    worker.barrier()
    assert data.shape == (count, 33), data.shape
    assert (data[-1] == count).all() and (data.excerpt([-1]) == count).all()
    worker.barrier()
np.testing.assert_array_equal(data[:9], rows[:9])
assert (data[9] == 10).all() and not data[10:1199].any()
np.testing.assert_array_equal(old[:9], rows[:9])
assert len(old) == 1000
late = SharedData(rows, "train")  # a worker that comes later finds the rows of now
assert len(late) == 1200 and not late.made_here
data.close(), late.close()
worker.barrier()
""",
        2,
    ).require_success()
    assert all("Error" not in log for log in outcome.logs)


def test_other_data_under_the_same_name_are_refused_where_they_come_later(run_job):
    outcome = run_job(
        PREAMBLE
        + """
for i, other in enumerate((rows + rank, rows[: 1000 - rank], rows.astype(["f4", "f8"][rank]))):
    worker.barrier()
    try:
        SharedData(other, f"x{i}")
    except ConfigurationError as exc:
        print("refused:", exc)
    worker.barrier("the other has come")
""",
        2,
    ).require_success()
    text = "\n".join(outcome.logs)
    refusals = re.findall(r"refused: got (.*) for the shared data 'x\d', another worker has shared", text)
    assert len(refusals) == 3


def test_a_worker_that_dies_while_it_fills_the_memory_is_replaced(run_job):
    outcome = run_job(
        PREAMBLE
        + """
class Deadly:
    shape, dtype = rows.shape, rows.dtype

    def __getitem__(self, key):
        if isinstance(key, slice):  # not the fingerprint: the memory is there and half of it is written
            assert len(names()) == 1
            os.kill(os.getpid(), signal.SIGKILL)
        return rows[key]

def load():
    (folder / "loading").touch()
    return Deadly() if rank == 0 else rows

if rank:
    await_file(folder / "loading")
data = SharedData(load, "x")
np.testing.assert_array_equal(data.array, rows)
print("made here:", data.made_here, names())
""",
        3,
    )
    logs = outcome.logs
    assert outcome.result.status != 0, logs
    assert "made here" not in logs[0]
    assert sorted(re.findall("made here: (True|False)", logs[1] + logs[2])) == ["False", "True"], logs


def test_the_memory_goes_with_the_job_when_its_maker_is_killed(run_job):
    outcome = run_job(
        PREAMBLE
        + """
data = SharedData(rows, "x")
worker.barrier()
if data.made_here:
    os.kill(os.getpid(), signal.SIGKILL)
np.testing.assert_array_equal(data.excerpt([5, 6]), rows[[5, 6]])
print("read", names())
""",
        2,
    )
    assert sum("read ['" in log for log in outcome.logs) == 1


def test_data_that_do_not_fit_are_refused_before_anything_is_written(run_job):
    room = os.statvfs(SHM_FOLDER)
    total = room.f_blocks * room.f_frsize
    outcome = run_job(
        PREAMBLE
        + f"""
try:
    SharedData.empty(({total // 4096 + 1}, 1024), name="huge")
except BackendUnavailableError as exc:
    print("refused:", exc)
assert names() == []
worker.barrier()
small = SharedData(rows, "small")
worker.barrier()
try:
    small.resize({total // 132 + 1})
except BackendUnavailableError as exc:
    print("refused:", exc)
assert len(small) == 1000
np.testing.assert_array_equal(small.array, rows)
print(sum(os.stat("/dev/shm/" + name).st_blocks * 512 for name in names()))
worker.barrier()
""",
        2,
    ).require_success()
    for log in outcome.logs:
        assert len(re.findall(rf"refused: needs \d+ MB of shared memory, {SHM_FOLDER} has \d+ MB free", log)) == 2
        assert int(log.split()[-1]) < 1 << 20


def test_a_slow_maker_is_waited_for_no_longer_than_told(run_job):
    outcome = run_job(
        PREAMBLE
        + """
def load():
    (folder / "loading").touch()
    await_file(folder / "given up")
    return rows

if rank == 0:
    data = SharedData(load, "x")
else:
    await_file(folder / "loading")
    try:
        SharedData(rows, "x", timeout_s=0.2)
    except CollectiveTimeoutError as exc:
        print("refused:", exc)
    (folder / "given up").touch()
    data = SharedData(rows, "x")
np.testing.assert_array_equal(data.array, rows)
""",
        2,
    ).require_success()
    assert "another worker has been making or changing the shared data 'x' for 0.2 s" in outcome.logs[1]


def test_removed_data_make_room_for_others_of_that_name(run_job):
    run_job(
        PREAMBLE
        + """
data = SharedData(rows, "x")
kept = data[3]
worker.barrier()
data.remove()
data.close()
worker.barrier()
assert names() == []
worker.barrier()
other = SharedData(rows[::-1], "x")
np.testing.assert_array_equal(other[0], rows[-1])
np.testing.assert_array_equal(kept, rows[3])
worker.barrier()
""",
        2,
    ).require_success()


def test_a_job_of_one_launched_worker_shares_too(run_job):
    """A late joiner may come."""
    run_job(PREAMBLE + "data = SharedData(rows)\nassert len(names()) == 1\nassert np.array_equal(data, rows)\n", 1)


def test_data_stay_readable_when_the_controller_is_killed_and_go_with_the_last_worker(tmp_path, write_script):
    script = write_script(
        PREAMBLE
        + """
data = SharedData(rows, "x")
worker.barrier()
if rank == 0:
    await_file(folder / "rank 1 needs the controller no more")
    os.kill(os.getppid(), signal.SIGKILL)
(folder / f"rank {rank} needs the controller no more").touch()
while not worker.should_stop:
    pass
np.testing.assert_array_equal(data.excerpt([5, 6]), rows[[5, 6]])
path = f"/dev/shm{files_of(worker).data('x')}"
assert os.path.exists(path)
worker.close()
(folder / "path").write_text(path)
(folder / f"rank {rank} has closed").touch()
"""
    )
    subprocess.run(
        [sys.executable, "-m", "platoon_base", "launch", "-n", "2", script, tmp_path],
        cwd=tmp_path, capture_output=True, check=False, timeout=60, env={**os.environ, "PLATOON_NO_PREFORK": "1"},
    )  # fmt: skip
    for rank in range(2):
        await_file(tmp_path / f"rank {rank} has closed")
    assert not os.path.exists((tmp_path / "path").read_text())


def test_clean_removes_the_data_of_a_job_of_which_all_were_killed(platoon, write_script, tmp_path):
    script = write_script(
        PREAMBLE
        + """
data = SharedData(rows, "x")
path = f"/dev/shm{files_of(worker).data('x')}"
print(path, flush=True)
for old in (files_of(worker).folder, "/dev/shm" + files_of(worker).job_state, path):
    os.utime(old, (0, 0))
os.kill(os.getppid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    platoon("launch", "-n", 1, "--log-dir", "logs", script, tmp_path, environment={"PLATOON_NO_PREFORK": "1"})
    path = (tmp_path / "logs" / "rank0.log").read_text().strip()
    assert os.path.exists(path)
    assert path in platoon("clean", "--dry-run").stdout
    platoon("clean")
    assert not os.path.exists(path)
