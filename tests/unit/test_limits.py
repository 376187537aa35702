"""What the system must have left before a job begins: too few open files are an error, not the end of a process."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from scripts_here import script_path

from platoon_base.errors import ConfigurationError
from platoon_base.system.limits import available_cores, available_memory, limit_text, oom_kills, require_room

pytestmark = pytest.mark.base

SCRIPT = """
import resource
from platoon_base import connect
connect().report({"soft": resource.getrlimit(resource.RLIMIT_NOFILE)[0]})
"""


def launch(tmp_path, soft, hard, workers=4):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    limited = f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"'
    command = [sys.executable, "-m", "platoon_base", "launch", "-n", str(workers), "--summary", "s.json", script]
    return subprocess.run(
        ["bash", "-c", limited, "bash", *map(str, command)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.parametrize(("soft", "hard"), [(200, 3000), (3000, 3000), (200, 200)])
def test_a_process_takes_all_that_its_hard_limit_allows(soft, hard):
    code = (
        "import resource\nfrom platoon_base.system.limits import raise_descriptors\n"
        "print(raise_descriptors(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    command = ["bash", "-c", f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"', "bash", sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True, timeout=120).split() == [str(hard)] * 3


def test_a_launcher_takes_all_that_its_hard_limit_allows(tmp_path):
    """Not only what it needs at the start: workers that are started again, and observers, come later."""
    done = launch(tmp_path, 500, 3000, workers=1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "s.json").read_text())["soft"] == 3000


STARTS = script_path("limits_starts")


@pytest.mark.parametrize("how", ["each", "forked"])
def test_a_worker_that_finds_no_descriptor_says_so_and_leaves_nothing_behind(tmp_path, how):
    limited = 'ulimit -n 4096; exec "$@"'
    command = ["bash", "-c", limited, "bash", sys.executable, STARTS, how]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert len(lines) == 12
    failed = [(limit, text) for limit, text in lines if text != "started"]
    assert 0 < len(failed) < 12
    for limit, text in failed:
        assert f"{limit} open files" in text
        assert "ulimit -n" in text
        assert "fewer workers" in text


def test_a_hard_limit_that_is_too_low_is_refused_with_one_into_which_all_workers_fit(tmp_path):
    """As many as fit by our count really do: the count is not too low."""
    refused = launch(tmp_path, 50, 50, workers=5)
    assert refused.returncode == 2, refused.stdout
    assert "got a limit of 50 open files (ulimit -Hn), and this process needs " in refused.stderr
    assert "Traceback" not in refused.stderr
    needed = int(re.search(r"this process needs (\d+)", refused.stderr)[1])
    assert needed < 200
    done = launch(tmp_path, needed, needed, workers=5)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_folder_that_takes_no_files_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot write logs to .*file/folder: Not a directory \("):
        require_room(tmp_path / "file" / "folder", "logs")
    require_room(tmp_path / "new" / "folder", "logs")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("can't start new thread"), "or its control group its pids.max"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "this user has reached `ulimit -u`"),
        (OSError(errno.EFBIG, "File too large", "/x/y"), "a file /x/y would be larger than"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/x/y"),
            "there is no room for /x/y (No space left on device)",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "there is no room for a file (Disk quota exceeded)"),
        (OSError(errno.ENOENT, "No such file", "/x/y"), ""),
        (ValueError("x"), ""),
    ],
)
def test_errors_of_limits_say_which_limit(error, text):
    assert (text in limit_text(error)) if text else limit_text(error) == ""


def test_a_limit_of_the_sizes_of_files_is_said_in_a_line(tmp_path, write_script):
    script = write_script("print('not run')")
    command = [sys.executable, "-m", "platoon_base", "launch", "-n", "1", str(script)]
    limited = f"ulimit -f 0; exec {shlex.join(command)}"
    done = subprocess.run(["sh", "-c", limited], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr or "ulimit -f" in done.stderr


def test_processes_that_were_killed_for_want_of_memory_are_those_of_the_group(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    assert oom_kills(proc, groups) == 0
    (proc / "self").mkdir(parents=True)
    (proc / "vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    assert oom_kills(proc, groups) == 7
    (proc / "self" / "cgroup").write_text("0::/user/x\n")
    (groups / "user" / "x").mkdir(parents=True)
    (groups / "user" / "x" / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert oom_kills(proc, groups) == 2
    (proc / "self" / "cgroup").write_text("4:memory:/job\n0::/\n")
    (groups / "memory" / "job").mkdir(parents=True)
    (groups / "memory" / "job" / "memory.oom_control").write_text("under_oom 0\noom_kill 1\n")
    assert oom_kills(proc, groups) == 1


def test_the_memory_that_is_left_is_the_machines_and_the_groups(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    assert available_memory(proc, groups) == sys.maxsize
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    5000 kB\nSwapFree:  24 kB\n")
    assert available_memory(proc, groups) == 5024 * 1024

    (proc / "self" / "cgroup").write_text("0::/user/x\n")
    folder = groups / "user" / "x"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text("max\n")
    (folder / "memory.current").write_text("1000\n")
    assert available_memory(proc, groups) == 5024 * 1024
    (folder / "memory.max").write_text("3000\n")
    (folder / "memory.stat").write_text("anon 5\nactive_file 100\ninactive_file 200\n")
    assert available_memory(proc, groups) == 2300

    (proc / "self" / "cgroup").write_text("4:memory:/of/the/host\n0::/\n")
    (groups / "memory").mkdir()
    (groups / "memory" / "memory.limit_in_bytes").write_text("5000\n")
    (groups / "memory" / "memory.usage_in_bytes").write_text("6000\n")
    assert available_memory(proc, groups) == 0


def test_the_cores_are_those_of_the_affinity_within_the_quotas_of_the_groups(tmp_path):
    bound = len(os.sched_getaffinity(0))
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    assert available_cores(proc, groups) == bound
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    (groups / "job" / "step").mkdir(parents=True)
    (groups / "job" / "step" / "cpu.max").write_text("max 100000\n")
    assert available_cores(proc, groups) == bound
    (groups / "job" / "cpu.max").write_text("50000 100000\n")  # half a core, for all that are in the group
    assert available_cores(proc, groups) == 1
    (groups / "job" / "cpu.max").write_text(f"{bound * 100000 - 50000} 100000\n")
    assert available_cores(proc, groups) == bound
    (proc / "self" / "cgroup").write_text("7:cpuset:/x\n4:cpu,cpuacct:/of/the/host\n0::/\n")
    folder = groups / "cpu,cpuacct"
    folder.mkdir()
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert available_cores(proc, groups) == bound
    (folder / "cpu.cfs_quota_us").write_text("20000\n")
    assert available_cores(proc, groups) == 1
