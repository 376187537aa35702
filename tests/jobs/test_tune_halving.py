"""`platoon tune` drops methods on the way, in real jobs, and draws a picture."""

import json
import re
import signal
from xml.etree import ElementTree

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.base

RATES = script_path("tune_halving_rates")
METHODS = ("--method", "CenterMomentum every 10", "--method", "EASGD every 10", "--method", "ASGD")
NAMES = ["plain, one worker", "CenterMomentum() every 10", "EASGD() every 10", "ASGD() every 10"]


def run(platoon, tmp_path, *words):
    fixed = ("--steps", 60, "--summary", "tune.json", "--plot", "tune.svg")
    done = platoon("tune", "-n", 2, *fixed, *METHODS, *words).require()
    return done.stdout, json.loads((tmp_path / "tune.json").read_text())


def last_step(tmp_path, number):
    (log,) = tmp_path.glob(f"platoon_logs/*/*/run{number}/rank0.log")
    return int(re.search(r"ended after (\d+)", log.read_text())[1])


def test_a_method_worse_than_the_median_is_ended_and_the_others_come_to_the_end(platoon, tmp_path):
    """The third one is compared with two, after 30 % of the steps, and gets no other seed."""
    scales = ("CenterMomentum=4", "EASGD=3", "ASGD=9")
    page = ("--report", "tune.html", "--seeds", 2)
    out, found = run(platoon, tmp_path, *page, RATES, *scales)
    assert [each["method"] for each in found["methods"]] == NAMES
    assert [each["dropped"] for each in found["methods"]] == [False, False, False, True]
    *others, asgd = [each["values"] for each in found["methods"]]
    assert others == [[pytest.approx(scale / 60)] * 2 for scale in (5, 4, 3)]
    # 18 steps lie between the reports after 15 and 20.
    assert asgd == [pytest.approx(9 / 15 + 3 / 5 * (9 / 20 - 9 / 15))]
    assert last_step(tmp_path, 4) <= 25  # at 25 it waits for the end
    assert re.search(r"^ASGD\(\) every 10 +0.51 +18 +[0-9.]+ +dropped +-$", out, re.MULTILINE)
    assert "Recommended: EASGD() every 10" in out
    text, svg = (tmp_path / "tune.html").read_text(), (tmp_path / "tune.svg").read_text()
    assert "Recommended: EASGD() every 10" in text
    for picture in (svg, text[text.index("<svg") : text.index("</svg>") + 6]):
        root = ElementTree.fromstring(picture)
        assert len(named(root, "median")) == 8  # in two panels
        assert len(named(root, "dropped")) == 2
        assert {*NAMES[:3], f"{NAMES[3]} (dropped)"} <= {each.text for each in root.iter() if each.text}


def named(root, name):
    return [each for each in root.iter() if each.get("id") == name]


def test_an_interrupted_study_compares_the_runs_that_have_ended(start_platoon):
    process = start_platoon("tune", "-n", 2, "--steps", 60, *METHODS, RATES, "CenterMomentum=4")
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("[2/12] "):
            process.send_signal(signal.SIGINT)
    assert process.wait() == 130, lines
    out = "".join(lines)
    assert "[3/12]" not in out
    assert f"Recommended: {NAMES[1]}" in out
    assert NAMES[2] not in out


@pytest.mark.parametrize(
    ("module", "words", "complaint"),
    [
        ("optuna", [], "platoon tune needs Optuna, which is not installed: pip install 'platoon-plugins[tune]'"),
        ("matplotlib", ["--plot", "tune.svg"], "not installed: pip install 'platoon-plugins[report]'"),
    ],
)
def test_a_missing_library_is_named_before_the_first_run(platoon, tmp_path, module, words, complaint):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(f"import sys; sys.modules[{module!r}] = None\n")
    done = platoon("tune", "-n", 2, *words, RATES, environment={"PYTHONPATH": str(tmp_path / "hidden")}).require(2)
    assert complaint in done.stderr
    assert not (tmp_path / "platoon_logs").exists()


def test_three_methods_are_tried_by_default(platoon, tmp_path):
    platoon("tune", "-n", 2, "--steps", 60, "--seeds", 1, "--no-halving", "--summary", "tune.json", RATES).require()
    found = json.loads((tmp_path / "tune.json").read_text())
    rules = ["AveragedEASGD() every 1", "CenterMomentum() every 10", "DiLoCo() every 20"]
    assert [each["method"] for each in found["methods"]] == ["plain, one worker", *rules]
