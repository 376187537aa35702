"""Workers killed at random moments: a short form of `make soak`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_kills_at_random_moments_leave_a_center_that_adds_up(tmp_path):
    command = [sys.executable, str(SOAK), "--kills", "9", "--seed", "1001", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "soak.json").read_text())["summary"]
    assert summary["workers"]["kills"] == 9
    assert summary["workers"]["wrong"] == 0
    assert summary["synchronous"]["jobs"] >= 1
    assert summary["synchronous"]["wrong"] == 0
    assert sum(count for name, count in summary["jobs"].items() if name.endswith("killed") or "ended by" in name) >= 5
    assert summary["jobs"]["wrong"] == 0


def test_a_job_whose_workers_are_killed_on_and_on_reaches_its_target(tmp_path):
    """The percentage of the steps is measured, not asserted: here a worker is killed every three seconds."""
    command = [sys.executable, str(SOAK), "--kills", "0", "--churn", "0.2", "--percent", "500", "--least", "1"]
    command += ["--seed", "3", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "soak.json").read_text())
    churn = results["summary"]["churn"]
    assert list(results["summary"]) == ["churn"]
    assert churn["wrong"] == 0
    assert results["kills in all"] == churn["kills"] == churn["restarts"] >= 1
    assert churn["steps, with kills"] > 0
    assert churn["target reached, with kills s"] > 0


def test_after_stalls_between_hosts_the_center_holds_each_step_once(tmp_path):
    command = [sys.executable, str(SOAK), "--kills", "0", "--stalls", "6", "--seed", "5", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "soak.json").read_text())["stalls"]
    assert [(each["hosts"], each["stalls"], each["right"]) for each in found] == [(2, 3, True), (3, 3, True)]
