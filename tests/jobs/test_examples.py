"""Each example, run as its users run it, with fewer epochs."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from needing import needs, needs_theano

EXAMPLES = Path(__file__).parents[2] / "examples"
FASHION = "usr/share/datasets/fashion-mnist"
PAGE = EXAMPLES.parent / "docs" / "keras.md"
BLOCKS_TIMEOUT_S = 560  # with an empty compile directory the LSTM takes two minutes on two busy cores
# Makes Keras 2.3.1 importable on Python 3.11, which a script without this package has to see to by itself.
PREPARE = "from platoon_base import compat; compat.apply(); "

needs_keras = needs("keras", "keras", "needs Keras: `make test` runs this in .venv, .nox/keras3, .nox/tf")
needs_blocks = needs("blocks", "blocks", "needs Blocks: BLOCKS=/path/to/a/checkout make test")


@needs_theano
@pytest.mark.slow
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


@needs_theano
@pytest.mark.slow
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


@needs_theano
@pytest.mark.slow
def test_lasagne_digits_alone(tmp_path):
    script = EXAMPLES / "lasagne_digits.py"
    subprocess.run(
        [sys.executable, script, "--num-epochs", "6", "--plot", "", "--summary", "s.json"],
        cwd=tmp_path, check=True, timeout=400, capture_output=True,
    )  # fmt: skip
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["workers"] == 1
    assert summary["stopped_by"] == "epochs >= 6"
    assert summary["test_accuracy"] > 0.9


@needs_keras
@pytest.mark.parametrize(
    ("workers", "options", "epochs"), [(2, [], 15), (2, ["--sync"], 15), (3, ["--conv"], 15)], ids=str
)
@pytest.mark.slow
def test_keras_digits(platoon, tmp_path, workers, options, epochs):
    done = platoon(
        "launch", "-n", workers, "--summary", "job.json", "--log-dir", "logs",
        EXAMPLES / "keras_digits.py", "--num-epochs", epochs, *options, "--summary", "script.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "script.json").read_text())
    assert summary["test_accuracy"] >= 0.93
    assert summary["workers"] == workers
    assert summary["epochs"] <= epochs
    assert summary["stopped_by"] in ("EarlyStopping", f"epochs >= {epochs}")
    assert json.loads((tmp_path / "job.json").read_text())["test_accuracy"] == summary["test_accuracy"]
    logs = [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(workers)]
    assert [f"test accuracy: {summary['test_accuracy']:.4f}" in log for log in logs] == [True] + [False] * (workers - 1)


@needs_keras
def test_keras_digits_alone(tmp_path):
    script = EXAMPLES / "keras_digits.py"
    subprocess.run(
        [sys.executable, script, "--num-epochs", "1", "--summary", "s.json"],
        cwd=tmp_path, check=True, timeout=400, capture_output=True,
    )  # fmt: skip
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["workers"] == summary["epochs"] == 1
    assert summary["stopped_by"] == "epochs >= 1"
    assert summary["test_accuracy"] > 0.3


needs_torch = needs("keras", "torch", "needs torch: `make test` runs this in .nox/keras3")


@needs_torch
@pytest.mark.parametrize("options", [[], ["--sync"]], ids=["async", "sync"])
@pytest.mark.slow
def test_torch_images_on_two_workers(platoon, tmp_path, options):
    done = platoon(
        "launch", "-n", 2, "--summary", "job.json", "--log-dir", "logs",
        EXAMPLES / "torch_images.py", *options, "--summary", "script.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "script.json").read_text())
    assert summary["test_accuracy"] >= 0.95
    assert summary["workers"] == 2
    assert json.loads((tmp_path / "job.json").read_text())["test_accuracy"] == summary["test_accuracy"]
    assert (tmp_path / "images.pt").stat().st_size > 0


@needs_torch
def test_torch_images_alone(tmp_path):
    subprocess.run(
        [sys.executable, EXAMPLES / "torch_images.py", "--num-epochs", "1", "--summary", "s.json"],
        cwd=tmp_path, check=True, timeout=400, capture_output=True,
    )  # fmt: skip
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["workers"] == summary["epochs"] == 1
    assert summary["test_accuracy"] > 0.5


def _diff():
    """Return the hunks of the diff in docs/keras.md, each as (the lines before, the lines after)."""
    (block,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    hunks = [hunk.splitlines() for hunk in re.split(r"^ \.\.\.\n", block, flags=re.MULTILINE)]
    return [
        tuple("".join(line[1:] + "\n" for line in hunk if line[0] in kind) for kind in (" -", " +")) for hunk in hunks
    ]


def _plain(script):
    """Take the page's diff back."""
    for before, after in _diff():
        assert script.count(after) == 1, after
        script = script.replace(after, before)
    return script


def _accuracies(text):
    return [float(number) for number in re.findall(r"^Test accuracy: (\S+)$", text, re.MULTILINE)]


def test_one_line_makes_a_keras_script_a_distributed_one():
    """The one that docs/keras.md shows, and its import; only comments of the rest name this package."""
    script = (EXAMPLES / "keras_convnet.py").read_text()
    plain = _plain(script)
    added = set(script.splitlines()) - set(plain.splitlines())
    assert len(added) == 2, added
    code = plain.split("\nimport keras\n")[1]
    assert not re.search("platoon|shard|distribute|prepare", code)
    compile(plain, "plain", "exec")


@needs_keras
@pytest.mark.slow
def test_keras_convnet_with_and_without_its_line(platoon, tmp_path):
    done = platoon("launch", "-n", 2, "--log-dir", "logs", EXAMPLES / "keras_convnet.py")
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [_accuracies((tmp_path / "logs" / f"rank{rank}.log").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    (accuracy,) = ranks[0]
    assert accuracy >= 0.93

    few = (EXAMPLES / "keras_convnet.py").read_text().replace("\nepochs = 20\n", "\nepochs = 1\n")
    (tmp_path / "plain.py").write_text(_plain(few))
    prepare = PREPARE if metadata.version("keras").startswith("2.") else ""
    code = f"{prepare}import runpy; runpy.run_path('plain.py', run_name='__main__')"
    alone = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
    )
    assert alone.returncode == 0, alone.stdout + alone.stderr
    (accuracy,) = _accuracies(alone.stdout)
    assert accuracy > 0.3


@needs_blocks
@pytest.mark.timeout(BLOCKS_TIMEOUT_S + 20)
@pytest.mark.parametrize("options", [[], ["--sync"]], ids=["async", "sync"])
@pytest.mark.parametrize("script", ["blocks_digits.py", "blocks_sequences.py"])
@pytest.mark.slow
def test_blocks_examples_on_two_workers(tmp_path, script, options):
    done = subprocess.run(
        [
            sys.executable, "-m", "platoon_base", "launch", "-n", "2", "--summary", "job.json", "--log-dir", "logs",
            EXAMPLES / script, "--num-epochs", "12", *options, "--summary", "script.json",
        ],
        cwd=tmp_path, check=False, timeout=BLOCKS_TIMEOUT_S, capture_output=True, text=True,
    )  # fmt: skip
    logs = [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(2)]
    assert done.returncode == 0, done.stdout + done.stderr + logs[0]
    for name in ("job.json", "script.json"):
        summary = json.loads((tmp_path / name).read_text())
        assert summary["test_accuracy"] >= 0.9
        assert summary["valid_error"] <= 0.1
        assert summary["workers"] == 2
        assert summary["epochs"] == 12
        assert summary["seconds"] > 0
    assert ["TRAINING HAS BEEN FINISHED" in log for log in logs] == [True, False]
    results = [json.loads(log[log.rindex("{\n") :]) for log in logs]
    assert results[0]["test_accuracy"] == results[1]["test_accuracy"]


@needs_blocks
@pytest.mark.slow
def test_blocks_digits_alone(tmp_path):
    script = EXAMPLES / "blocks_digits.py"
    subprocess.run(
        [sys.executable, script, "--num-epochs", "6", "--summary", "s.json"],
        cwd=tmp_path, check=True, timeout=400, capture_output=True,
    )  # fmt: skip
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["workers"] == 1
    assert summary["epochs"] == 6
    assert summary["test_accuracy"] >= 0.9


@needs_theano
@pytest.mark.parametrize("options", [[], ["--resident"]], ids=["shared memory", "own memory"])
@pytest.mark.parametrize("data", ["digits", "Fashion-MNIST"])
@pytest.mark.slow
def test_lasagne_fashion_on_two_workers(platoon, tmp_path, options, data):
    environment = {"FASHION_MNIST": ""}
    if data != "digits":
        environment = {}
        folders = [os.environ.get("FASHION_MNIST", EXAMPLES.parent / ".cache/data" / FASHION), f"/{FASHION}"]
        if not any(Path(folder, "train-images-idx3-ubyte.gz").is_file() for folder in folders):
            pytest.skip("needs Fashion-MNIST: `make data` fetches it")
    epochs, least = (40, 0.85) if data == "digits" else (1, 0.75)
    done = platoon(
        "launch", "-n", 2, "--summary", "job.json", "--log-dir", "logs",
        EXAMPLES / "lasagne_fashion.py", "--num-epochs", epochs, *options, "--summary", "script.json",
        environment=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "script.json").read_text())
    assert (summary["data"], summary["workers"]) == (data, 2)
    assert summary["test_accuracy"] >= least
    assert json.loads((tmp_path / "job.json").read_text())["test_accuracy"] == summary["test_accuracy"]
    logs = [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(2)]
    assert [log.count("test accuracy") for log in logs] == [epochs, 0]
