"""Scripts as a user of Keras writes them, with `prepare` for each model as the only change, on two workers."""

import json
import os
import subprocess
import sys

import pytest
from keras_here import KERAS_2, keras
from scripts_here import script_path

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(300),
    pytest.mark.skipif(KERAS_2, reason="the scripts are for Keras 3: run it in .nox/keras3 (make test)"),
]

# The scripts by their names, those behind a colon with averaged gradients. torch runs all that it can; JAX and
# TensorFlow take longer to compile, and run those with something of their own.
_EVERYWHERE = ["own_train_step", "imbalanced:sync", "schedule", "loop:sync"]
_ON_TORCH = [
    *("convnet", "text", "several_outputs", "autoencoder:sync", "siamese", "transfer", "dataloader", "pydataset"),
    "callbacks",
    *("sample_weights", "residual:sync", "regression", "tagging:sync", "go_on", "generator", "gan:sync"),
]
_ON_TENSORFLOW = [
    "transfer",
    "callbacks",
    "pydataset",
    "go_on",
    "generator",
    "tf_data",
    "timeseries:sync",
    "image_folder",
]
_MORE = {"torch": _ON_TORCH, "tensorflow": _ON_TENSORFLOW}.get(keras.backend.backend(), ["dataloader"])
SCRIPTS = [] if KERAS_2 else [*_EVERYWHERE, *_MORE]
NAMES = [script.partition(":")[0] for script in SCRIPTS]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run the scripts by one plain process, and prepared on two workers; return what each process has left."""
    folder = tmp_path_factory.mktemp("stock")
    script = script_path("keras_stock_scripts_run_unchanged")
    for name, start, how in (
        ("plain", [sys.executable], "plain"),
        ("launched", [sys.executable, "-m", "platoon_base", "launch", "-n", "2", "-D", "cpu"], "prepared"),
    ):
        where = folder / name
        where.mkdir()
        if (folder / "plain/PetImages").exists():
            (where / "PetImages").symlink_to(folder / "plain/PetImages")
        command = [*start, str(script), how, *SCRIPTS]
        done = subprocess.run(
            command, cwd=where, capture_output=True, text=True, timeout=280, env=os.environ, check=False
        )
        failed = "".join(path.read_text()[-4000:] for path in where.rglob("rank*.log") if done.returncode)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:] + failed
    files = sorted(folder.rglob("rank?.json"))
    return folder, {f"{path.parent.name} {path.stem}": json.loads(path.read_text()) for path in files}


@pytest.mark.parametrize("name", NAMES)
def test_scripts_run_unchanged(runs, name):
    """All workers have one model and one history at the end, and the history is of the kind of one process's."""
    _, left = runs
    alone, first, second = (left[who][name] for who in ("plain rank0", "launched rank0", "launched rank1"))
    assert first["weights"] == second["weights"]
    lengths = {metric: len(values) for metric, values in alone["history"].items()}
    assert {metric: len(values) for metric, values in first["history"].items()} == lengths
    if name == "loop":
        return  # what train_on_batch returns is of this worker's rows
    assert first["history"] == second["history"]


def test_metrics_count_all_rows_once(runs):
    """One process is no measure: on torch, Keras 3.15 shows the counts of validation as those of training."""
    _, left = runs
    history = left["launched rank0"]["imbalanced"]["history"]
    for before, rows in ("", 800), ("val_", 200):
        counts = [sum(history[before + name][epoch] for name in ("fn", "fp", "tn", "tp")) for epoch in range(3)]
        assert counts == [rows] * 3


def test_saved_models_open_without_the_package(runs):
    folder, _ = runs
    files = [path for path in (folder / "launched").glob("*.keras") if path.name != "my_model.keras"]
    assert files
    code = (
        "import sys, keras\n"
        "for path in sys.argv[1:]: keras.models.load_model(path)\n"
        "assert not any(name.startswith('platoon') for name in sys.modules)"
    )
    command = [sys.executable, "-c", code, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert not list((folder / "launched").glob(".*keras"))  # what was written beside a file has taken its place
