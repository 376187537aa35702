"""Each example, run as its users run it, with fewer epochs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from platoon_base import compat

compat.apply()
pytest.importorskip("theano", reason="needs Theano: `make setup` installs it on Python 3.11")

pytestmark = pytest.mark.theano

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_lasagne_digits_on_two_workers(platoon, tmp_path):
    done = platoon(
        "launch", "-n", 2, "--summary", "job.json", "--log-dir", "logs",
        EXAMPLES / "lasagne_digits.py", "--num-epochs", 25, "--plot", "errors.png", "--summary", "script.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")
    for name in ("job.json", "script.json"):
        summary = json.loads((tmp_path / name).read_text())
        assert summary["test_accuracy"] >= 0.95
        assert summary["workers"] == 2
        assert summary["stopped_by"]
        assert summary["seconds"] > 0


def test_lasagne_digits_with_averaged_gradients_on_two_workers(platoon, tmp_path):
    done = platoon(
        "launch", "-n", 2, "--summary", "job.json", "--log-dir", "logs",
        EXAMPLES / "lasagne_digits.py", "--sync", "--num-epochs", 12, "--plot", "", "--summary", "script.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "script.json").read_text())
    assert summary["test_accuracy"] >= 0.93
    assert summary["workers"] == 2
    assert summary["stopped_by"] == "epochs >= 12"


def test_lasagne_digits_alone(tmp_path):
    script = EXAMPLES / "lasagne_digits.py"
    subprocess.run(
        [sys.executable, script, "--num-epochs", "6", "--plot", "", "--summary", "s.json"],
        cwd=tmp_path, check=True, timeout=100, capture_output=True,
    )  # fmt: skip
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["workers"] == 1
    assert summary["stopped_by"] == "epochs >= 6"
    assert summary["test_accuracy"] > 0.9
