"""Workers killed at random moments: a short form of `make soak`."""

import json
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def soak(run_command, tmp_path):
    def run(words):
        run_command(sys.executable, SOAK, *words.split(), "--out", tmp_path).require()
        return json.loads((tmp_path / "soak.json").read_text())

    return run


def test_kills_at_random_moments_leave_a_center_that_adds_up(soak):
    summary = soak("--kills 9 --seed 1001")["summary"]
    assert summary["workers"]["kills"] == 9
    assert summary["workers"]["wrong"] == 0
    assert summary["synchronous"]["jobs"] >= 1
    assert summary["synchronous"]["wrong"] == 0
    assert sum(count for name, count in summary["jobs"].items() if name.endswith("killed") or "ended by" in name) >= 5
    assert summary["jobs"]["wrong"] == 0


def test_a_job_whose_workers_are_killed_on_and_on_reaches_its_target(soak):
    """The percentage of the steps is measured, not asserted: here a worker is killed every three seconds."""
    results = soak("--kills 0 --churn 0.2 --percent 500 --least 1 --seed 3")
    churn = results["summary"]["churn"]
    assert list(results["summary"]) == ["churn"]
    assert churn["wrong"] == 0
    assert results["kills in all"] == churn["kills"] == churn["restarts"] >= 1
    assert churn["steps, with kills"] > 0
    assert churn["target reached, with kills s"] > 0


def test_after_stalls_between_hosts_the_center_holds_each_step_once(soak):
    found = soak("--kills 0 --stalls 6 --seed 5")["stalls"]
    assert [(each["hosts"], each["stalls"], each["right"]) for each in found] == [(2, 3, True), (3, 3, True)]
