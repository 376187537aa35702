"""Whole jobs that are stopped and continued, as by `scontrol suspend` or a laptop's lid."""

import os
import random
import signal
import time

import pytest
from scripts_here import script_path

pytestmark = [pytest.mark.base, pytest.mark.slow]

TIMEOUT_S, STOPPED_S = 10, 14


def tree(pid):
    found = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += [each for child in file.read().split() for each in tree(int(child))]
    return found


def stop_for(pids, seconds):
    """Stop processes and continue them, in any order and not at one moment."""
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in random.sample(pids, len(pids)):
            os.kill(pid, number)
            time.sleep(0.02)
        until = time.monotonic() + (seconds if number == signal.SIGSTOP else 0)
        while time.monotonic() < until:
            time.sleep(0.05)


def test_a_job_on_two_hosts_that_is_stopped_goes_on(hosts):
    environment = {"PLATOON_TIMEOUT_S": str(TIMEOUT_S)}
    for host in (0, 1):
        options, arguments = ["--host-timeout", str(TIMEOUT_S)], [str(TIMEOUT_S)]
        script = script_path("suspended_waits")
        hosts.start(script, *options, host=host, workers=2, args=arguments, environment=environment)
    hosts.until("logs0/rank0.log", "go", timeout_s=60)
    stop_for([pid for launcher in hosts.launchers for pid in tree(launcher.pid)], STOPPED_S)
    output = lambda: hosts.output(0) + hosts.output(1)  # noqa: E731
    assert hosts.wait() == [0, 0], output()
    assert "lost" not in output()
    assert "END 60 [0.0, 1.0, 2.0]" in hosts.log(3, 1)
