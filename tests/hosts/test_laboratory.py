"""The laboratory itself: hosts that are apart, links that are cut, slow or limited, and nothing left of any."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from scripts_here import script_path

HELPERS = Path(__file__).parents[1] / "helpers"

# Answers each datagram; and asks until there is an answer, which it writes with the time that it took.
ECHO = script_path("laboratory_echo")
ASK = script_path("laboratory_ask")

# Takes ten megabytes; and sends them, and writes how long that took.
SINK = script_path("laboratory_sink")
SOURCE = script_path("laboratory_source")


def ask(host, name="h1", timeout_s=0.3):
    answer = host.run(sys.executable, ASK, name, timeout_s).split()[-1]
    return None if answer == "none" else float(answer)


@contextlib.contextmanager
def answering(host):
    echo = host.start(sys.executable, ECHO)
    try:
        echo.until("ready")
        yield
    finally:
        echo.close()


def test_hosts_share_one_folder_and_nothing_else(laboratory):
    first, second = laboratory.hosts
    first.run("sh", "-c", f"touch /dev/shm/a /tmp/a /tmp/home/a {laboratory.folder}/a")
    seen = second.run("sh", "-c", f"hostname; ls /dev/shm /tmp/home; ls /tmp; ls {laboratory.folder}").split()
    assert seen[0] == "h1"
    assert seen.count("a") == 1
    assert len(second.run("sh", "-c", "ls -d /proc/[0-9]*").split()) < 6
    assert laboratory.leftovers() == {"h0": ["memory a"]}
    assert not Path("/dev/shm/a").exists()
    first.outside("/dev/shm/a").unlink()


def test_a_cut_is_silent_and_mends(laboratory):
    first, second = laboratory.hosts
    with answering(second):
        assert ask(first) < 0.1
        laboratory.cut(second)
        assert ask(first) is None
        laboratory.mend(second)
        assert ask(first, timeout_s=5) is not None


def test_a_wire_takes_its_time(make_laboratory):
    there = make_laboratory(2, delay_ms=20)
    with answering(there.hosts[1]):
        assert 0.08 <= ask(there.hosts[0], timeout_s=5) < 0.2


def test_a_rate_is_a_limit(laboratory):
    """Ten megabytes take 0.8 s at 100 Mbit/s."""
    laboratory.limit("100mbit")
    sink = laboratory.hosts[1].start(sys.executable, SINK)
    sink.until("ready")
    assert 0.7 < float(laboratory.hosts[0].run(sys.executable, SOURCE)) < 3
    sink.wait()


def test_signals_reach_the_command_and_its_status_comes_back(laboratory):
    running = laboratory.hosts[0].start("sleep", 100)
    running.send_signal(signal.SIGTERM)
    assert running.wait() == -signal.SIGTERM
    assert laboratory.hosts[0].start("sh", "-c", "exit 7").wait() == 7


def test_a_killed_host_takes_all_with_it_and_boots_again(laboratory):
    host = laboratory.hosts[1]
    running = host.start("sh", "-c", "touch /dev/shm/a; echo up; sleep 100 & wait")
    running.until("up")
    host.kill()
    assert running.poll() is not None
    assert not host.alive
    host.boot()
    assert laboratory.leftovers() == {}
    with answering(host):
        assert ask(laboratory.hosts[0], timeout_s=5) is not None


def test_nothing_outlives_a_killed_test(tmp_path, make_laboratory):
    make_laboratory(1)  # skips where there can be none
    code = script_path("laboratory_nothing_outlives_a_killed_test")
    path = f"{HELPERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, code]
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        folder, *pids = process.stdout.readline().split()
        process.kill()
    deadline = time.monotonic() + 10
    while running := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, running
        time.sleep(0.01)
    subprocess.run(["rm", "-r", folder], check=True)


def test_names_need_not_resolve(make_laboratory):
    there = make_laboratory(2, names=False)
    assert there.hosts[0].start("getent", "hosts", "h1").wait() != 0
