"""`platoon tune` drops methods on the way, in real jobs, and draws a picture."""

import json
import re

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.base

RATES = script_path("tune_halving_rates")
METHODS = ("--method", "CenterMomentum every 10", "--method", "EASGD every 10", "--method", "ASGD")
NAMES = ["plain, one worker", "CenterMomentum() every 10", "EASGD() every 10", "ASGD() every 10"]


def run(platoon, tmp_path, *words):
    fixed = ("--steps", 60, "--summary", "tune.json", "--plot", "tune.svg")
    done = platoon("tune", "-n", 2, *fixed, *METHODS, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((tmp_path / "tune.json").read_text())


def last_step(tmp_path, number):
    (log,) = tmp_path.glob(f"platoon_logs/*/*/run{number}/rank0.log")
    return int(re.search(r"ended after (\d+)", log.read_text())[1])


def test_the_worst_is_ended_at_a_third_and_the_others_come_to_the_end(platoon, tmp_path):
    """Of three methods two go on after 20 steps."""
    scales = ("CenterMomentum=4", "EASGD=3", "ASGD=9")
    out, found = run(platoon, tmp_path, "--seeds", 1, RATES, *scales)
    assert [each["method"] for each in found["methods"]] == NAMES
    assert found["rungs"] == [{"at": pytest.approx(20), "keep": 2}, {"at": pytest.approx(40), "keep": 2}]
    *others, asgd = found["methods"]
    assert [each["dropped"] for each in others] == [None] * 3
    assert [each["values"] for each in others] == [[pytest.approx(scale / 60)] for scale in (5, 4, 3)]
    dropped = asgd["dropped"]
    assert (dropped["steps"], dropped["value"]) == (pytest.approx(20), pytest.approx(9 / 20))
    assert dropped["better"] == {NAMES[1]: pytest.approx(4 / 20), NAMES[2]: pytest.approx(3 / 20)}
    assert last_step(tmp_path, 4) <= 25  # at 25 it waits for the end
    assert re.search(r"^ASGD\(\) every 10 +0.45 +20 +[0-9.]+ +dropped +-$", out, re.MULTILINE)
    assert "ASGD() every 10 was dropped after 20 steps" in out
    assert "Take: EASGD() every 10" in out


def test_three_methods_are_tried_by_default(platoon, tmp_path):
    done = platoon("tune", "-n", 2, "--steps", 60, "--seeds", 1, "--no-halving", "--summary", "tune.json", RATES)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "tune.json").read_text())
    rules = ["AveragedEASGD() every 1", "CenterMomentum() every 10", "DiLoCo() every 20"]
    assert [each["method"] for each in found["methods"]] == ["plain, one worker", *rules]
