"""How `ps` and `top` show the processes of a job."""

import os

import pytest

pytest.importorskip("setproctitle")
pytestmark = pytest.mark.base

SHOW = """
    import os, subprocess
    me = str(os.getpid())
    print(subprocess.run(["ps", "-o", "args=", "-p", me], capture_output=True, text=True).stdout.strip())
    print(subprocess.run(["ps", "-o", "comm=", "-p", me], capture_output=True, text=True).stdout.strip())
    print("HOME=" + os.environ["HOME"] in open("/proc/self/environ").read().split("\\0"), "SPT_NOENV" in os.environ)
"""


@pytest.mark.parametrize("alone", ["", "1"], ids=["forked", "alone"])
def test_workers_are_shown_by_script_rank_and_device(platoon, write_script, tmp_path, alone):
    script = write_script(SHOW, "train.py")
    environment = {"PLATOON_NO_PREFORK": alone, "HOME": "/h"}
    done = platoon("launch", "-n", 2, "--log-dir", "logs", script, "a", "b", environment=environment).require()
    for rank, log in enumerate(done.logs):
        assert log.splitlines()[-3:] == [f"platoon: train.py rank {rank} cpu", f"rank {rank} train.py", "True False"]


def test_a_module_is_shown_by_its_dotted_name(platoon, write_script, tmp_path):
    (tmp_path / "package").mkdir()
    write_script(SHOW, "package/train.py")
    assert platoon("launch", "-n", 1, "--log-dir", "logs", "-m", "package.train").returncode == 0
    assert "platoon: package.train rank 0 cpu\n" in (tmp_path / "logs" / "rank0.log").read_text()


def test_a_script_that_runs_alone_has_no_rank(platoon, write_script):
    done = platoon("run", write_script(SHOW, "train.py"))
    assert done.stdout.splitlines()[0] == "platoon: train.py"


def test_a_name_that_is_not_utf_8_is_shown_legibly(platoon, tmp_path):
    (tmp_path / os.fsdecode(b"tr\xffin.py")).write_text("print(ascii(open('/proc/self/cmdline').read().strip(chr(0))))")
    done = platoon("run", b"tr\xffin.py").require()
    assert done.stdout.strip() == r"'platoon: tr\\udcffin.py'"
