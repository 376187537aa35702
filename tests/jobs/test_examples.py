"""Each example, run as its users run it, with fewer epochs."""

import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from needing import marks_of, needs, needs_loops, needs_theano

EXAMPLES = Path(__file__).parents[2] / "examples"
FASHION = "usr/share/datasets/fashion-mnist"
PAGE = EXAMPLES.parent / "docs" / "keras.md"
TIMEOUT_S = 560  # with an empty compile directory the LSTM takes two minutes on two busy cores
# Makes Keras 2.3.1 importable on Python 3.11, which a script without this package has to see to by itself.
PREPARE = "from platoon_base import compat; compat.apply(); "

needs_keras = needs("keras", "keras", "needs Keras: `make test` runs this in .venv, .nox/keras3, .nox/tf")
needs_blocks = needs("blocks", "blocks", "needs Blocks: BLOCKS=/path/to/a/checkout make test")


needs_torch, needs_optax = needs_loops("torch"), needs_loops("optax")


@pytest.fixture
def launch(platoon, tmp_path):
    """Run an example on workers; returns its summary, which the job's has too, and the logs."""

    def run(script, *words, workers=2, environment=None):
        job = "launch", "-n", workers, "--summary", "job.json", "--log-dir", "logs", EXAMPLES / script
        platoon(*job, *words, "--summary", "script.json", timeout=TIMEOUT_S, environment=environment).require()
        logs = [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(workers)]
        found, of_job = (json.loads((tmp_path / name).read_text()) for name in ("script.json", "job.json"))
        assert found["test_accuracy"] == of_job["test_accuracy"]
        assert found["workers"] == of_job["workers"] == workers
        assert of_job["stopped_by"]
        assert of_job["seconds"] > 0
        return found, logs

    return run


ALONE = [
    pytest.param("lasagne_digits.py", ["--num-epochs", "2", "--plot", ""], 0.5, marks=marks_of(needs_theano)),
    pytest.param("keras_digits.py", ["--num-epochs", "1"], 0.3, marks=marks_of(needs_keras)),
    pytest.param("torch_images.py", ["--num-epochs", "1"], 0.5, marks=marks_of(needs_torch)),
    pytest.param("jax_images.py", ["--num-epochs", "1"], 0.5, marks=marks_of(needs_optax)),
    pytest.param("blocks_digits.py", ["--num-epochs", "2"], 0.5, marks=marks_of(needs_blocks)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "words", "least"), ALONE)
def test_an_example_alone(run_command, tmp_path, script, words, least):
    run_command(sys.executable, EXAMPLES / script, *words, "--summary", "s.json").require()
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["workers"] == 1
    assert summary["epochs"] == int(words[1])
    assert summary["test_accuracy"] > least


@needs_theano
@pytest.mark.slow
@pytest.mark.parametrize(("words", "least"), [(["--plot", "errors.png"], 0.95), (["--sync", "--plot", ""], 0.93)])
def test_lasagne_digits_on_two_workers(launch, tmp_path, words, least):
    summary, _ = launch("lasagne_digits.py", "--num-epochs", 12 if "--sync" in words else 25, *words)
    assert summary["test_accuracy"] >= least
    assert "--sync" in words or (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")


@needs_keras
@pytest.mark.slow
@pytest.mark.parametrize(("workers", "options"), [(2, ["--sync"]), (3, ["--conv"])], ids=str)
def test_keras_digits(launch, workers, options):
    summary, logs = launch("keras_digits.py", "--num-epochs", 15, *options, workers=workers)
    assert summary["test_accuracy"] >= 0.93
    assert summary["stopped_by"] in ("EarlyStopping", "epochs >= 15")
    assert [f"test accuracy: {summary['test_accuracy']:.4f}" in log for log in logs] == [True] + [False] * (workers - 1)


IMAGES = [
    pytest.param("torch_images.py", "images.pt", marks=marks_of(needs_torch)),
    pytest.param("jax_images.py", "images.npz", marks=marks_of(needs_optax)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "saved"), IMAGES)
@pytest.mark.parametrize("options", [[], ["--sync"]], ids=["async", "sync"])
def test_images_on_two_workers(launch, tmp_path, script, saved, options):
    summary, _ = launch(script, *options)
    assert summary["test_accuracy"] >= 0.95
    assert (tmp_path / saved).stat().st_size > 0


def _diff():
    """Return the hunks of the diff in docs/keras.md, each as (the lines before, the lines after)."""
    (block,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    hunks = [hunk.splitlines() for hunk in re.split(r"^ \.\.\.\n", block, flags=re.MULTILINE)]
    return [
        tuple("".join(line[1:] + "\n" for line in hunk if line[0] in kind) for kind in (" -", " +")) for hunk in hunks
    ]


def _plain(script):
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
def test_keras_convnet_with_and_without_its_line(platoon, run_command, tmp_path):
    platoon("launch", "-n", 2, "--log-dir", "logs", EXAMPLES / "keras_convnet.py").require()
    ranks = [_accuracies((tmp_path / "logs" / f"rank{rank}.log").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    (accuracy,) = ranks[0]
    assert accuracy >= 0.93

    few = (EXAMPLES / "keras_convnet.py").read_text().replace("\nepochs = 20\n", "\nepochs = 1\n")
    (tmp_path / "plain.py").write_text(_plain(few))
    prepare = PREPARE if metadata.version("keras").startswith("2.") else ""
    code = f"{prepare}import runpy; runpy.run_path('plain.py', run_name='__main__')"
    (accuracy,) = _accuracies(run_command(sys.executable, "-c", code).require().stdout)
    assert accuracy > 0.3


@needs_blocks
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options"), [("blocks_digits.py", ["--sync"]), ("blocks_sequences.py", [])], ids=["sync", "async"]
)
def test_blocks_examples_on_two_workers(launch, script, options):
    summary, logs = launch(script, "--num-epochs", 12, *options)
    assert summary["test_accuracy"] >= 0.9
    assert summary["valid_error"] <= 0.1
    assert summary["epochs"] == 12
    assert ["TRAINING HAS BEEN FINISHED" in log for log in logs] == [True, False]
    results = [json.loads(log[log.rindex("{\n") :]) for log in logs]
    assert results[0]["test_accuracy"] == results[1]["test_accuracy"]


@needs_theano
@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "options"),
    [("digits", []), ("digits", ["--resident"]), ("Fashion-MNIST", [])],
    ids=["shared memory", "own memory", "Fashion-MNIST"],
)
def test_lasagne_fashion_on_two_workers(launch, data, options):
    folders = [os.environ.get("FASHION_MNIST", EXAMPLES.parent / ".cache/data" / FASHION), f"/{FASHION}"]
    if data != "digits" and not any(Path(folder, "train-images-idx3-ubyte.gz").is_file() for folder in folders):
        pytest.skip("needs Fashion-MNIST: `make data` fetches it")
    epochs, least = (40, 0.85) if data == "digits" else (1, 0.75)
    environment = {"FASHION_MNIST": ""} if data == "digits" else {}
    summary, logs = launch("lasagne_fashion.py", "--num-epochs", epochs, *options, environment=environment)
    assert summary["data"] == data
    assert summary["test_accuracy"] >= least
    assert [log.count("test accuracy") for log in logs] == [epochs, 0]
