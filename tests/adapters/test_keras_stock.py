"""Scripts as a user of Keras writes them, with `prepare` for each model as the only change, on one and two workers."""

import json
import os
import subprocess
import sys

import pytest
from keras_here import KERAS_2, keras
from programs import run_python
from scripts_here import script_path

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backend,
    pytest.mark.timeout(1000),
    pytest.mark.skipif(KERAS_2, reason="the scripts are for Keras 3: run it in .nox/keras3 (make test)"),
]

# Groups of scripts by their names, each of which runs in one job; those behind a colon with averaged gradients. Each
# back end runs all of them, and those that need its own package, in its last short group.
_GROUPS = [
    "own_train_step imbalanced:sync schedule loop:sync own_metric interrupted distillation:sync",
    "callbacks pydataset go_on generator restore own_callbacks recommender",
    "text several_outputs autoencoder:sync transfer sample_weights lora mixed_precision:sync",
]
_IMPORTED = {"torch": " dataloader", "jax": " dataloader", "tensorflow": " tf_data timeseries:sync image_folder"}
_SHORT = {"torch": 3, "jax": 1, "tensorflow": 1}  # groups from the first on; the others are rare
_BACKEND = keras.backend.backend()


def _groups():
    short = _SHORT.get(_BACKEND, 0)
    for number, group in enumerate(_GROUPS):
        scripts = group + _IMPORTED[_BACKEND] if number == short - 1 else group
        yield pytest.param(scripts, id=scripts.replace(" ", "+"), marks=() if number < short else pytest.mark.rare)


def _run(folder, start, how, scripts):
    folder.mkdir(exist_ok=True)
    command = [sys.executable, *start, str(script_path("keras_stock_scripts_run_unchanged")), how, *scripts]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=800, env=os.environ, check=False)
    failed = "".join(path.read_text()[-4000:] for path in folder.rglob("rank*.log") if done.returncode)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:] + failed
    return done, [json.loads(path.read_text()) for path in sorted(folder.glob("rank?.json"))]


@pytest.mark.parametrize("group", list(_groups()))
def test_scripts_run_unchanged(group, tmp_path):
    """Both workers have one model and one history at the end, and the history is of the kind of one process's."""
    scripts = group.split()
    _, (plain,) = _run(tmp_path / "plain", [], "plain", scripts)
    (tmp_path / "launched").mkdir()
    if (tmp_path / "plain/PetImages").exists():
        (tmp_path / "launched/PetImages").symlink_to(tmp_path / "plain/PetImages")
    launch = ["-m", "platoon_base", "launch", "-n", "2", "-D", "cpu"]
    done, (first, second) = _run(tmp_path / "launched", launch, "prepared", scripts)
    assert list(plain) == list(first) == list(second) == [each.partition(":")[0] for each in scripts]
    for name, alone in plain.items():
        left, other = first[name], second[name]
        assert left["weights"] == other["weights"], name
        lengths = {metric: len(values) for metric, values in alone["history"].items()}
        assert {metric: len(values) for metric, values in left["history"].items()} == lengths, name
        if name != "loop":  # what train_on_batch returns is of this worker's rows
            assert left["history"] == other["history"], name
    assert "train on the same data" not in done.stdout
    if "imbalanced" in first:
        _require_all_rows_once(first["imbalanced"]["history"])
    _require_that_saved_models_open(tmp_path / "launched")


def _require_all_rows_once(history):
    """One process is no measure: on torch, Keras 3.15 shows the counts of validation as those of training."""
    for before, rows in ("", 800), ("val_", 200):
        counts = [sum(history[before + name][epoch] for name in ("fn", "fp", "tn", "tp")) for epoch in range(3)]
        assert counts == [rows] * 3


def _require_that_saved_models_open(folder):
    """Saved models open without the package, and what was written beside a file has taken its place."""
    files = [path for path in folder.rglob("*.keras") if path.name not in ("my_model.keras",)]
    code = (
        "import sys, keras\n"
        "for path in sys.argv[1:]: keras.models.load_model(path)\n"
        "assert not any(name.startswith('platoon') for name in sys.modules)"
    )
    if files:
        run_python("-c", code, *files, timeout=400)
    assert not list(folder.rglob(".*keras"))


@pytest.mark.slow
def test_a_single_worker_trains_as_plain_python_does(tmp_path):
    """`platoon launch -n 1`, with the line, ends with a model and a history of the same kind."""
    scripts = ["schedule", "own_metric"]
    _, (plain,) = _run(tmp_path / "plain", [], "plain", scripts)
    _, (one,) = _run(tmp_path / "one", ["-m", "platoon_base", "launch", "-n", "1", "-D", "cpu"], "prepared", scripts)
    for name in plain:
        assert {metric: len(values) for metric, values in one[name]["history"].items()} == {
            metric: len(values) for metric, values in plain[name]["history"].items()
        }
