"""Trackers of experiments: a job is one run, and what it holds is read by the tracker's own tool."""

import re
import subprocess
import sys

import pytest
from keras_here import KERAS_2
from needing import needs_package
from scripts_here import script_path

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(600),
    pytest.mark.skipif(KERAS_2, reason="the trackers' integrations are for Keras 3: run it in .nox/keras3 (make test)"),
]
SCRIPT = script_path("keras_trackers_one_run")
WORKERS = 2


@pytest.fixture
def train(platoon, tmp_path):
    """Train with trackers that write to the test's folder and ask nobody; returns the output and the last val_loss."""
    environment = {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }

    def run(*words, options=()):
        words = ["launch", "-n", WORKERS, "--tensorboard", "board", *options, SCRIPT, *words]
        done = platoon(*words, environment=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, float(re.search(r"^val_loss ([\d.]+)$", done.stdout, re.MULTILINE)[1])

    return run


def wandb_runs(folder):
    """Return the number of offline runs; W&B's command counts them too."""
    found = list(folder.glob("wandb/offline-run-*/run-*.wandb"))
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=True)
    assert len(set(re.findall(r"\brun-(\w+)\.wandb", done.stdout + done.stderr))) == len(found)
    return len(found)


def mlflow_runs(folder):
    """Return the last val_loss of each run, by MLflow's client."""
    import mlflow

    client = mlflow.MlflowClient((folder / "mlruns").as_uri())
    experiments = [each.experiment_id for each in client.search_experiments()]
    return [run.data.metrics["val_loss"] for run in client.search_runs(experiments)]


@needs_package("wandb")
def test_a_job_is_one_run_of_wandb(train, tmp_path):
    output, _ = train("wandb")
    assert wandb_runs(tmp_path) == 1
    assert "has a separate " not in output


@needs_package("mlflow")
def test_a_job_is_one_run_of_mlflow(train, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    output, val_loss = train("mlflow")
    assert mlflow_runs(tmp_path) == pytest.approx([val_loss])
    assert "has a separate " not in output


@needs_package("wandb")
@needs_package("mlflow")
def test_runs_of_several_workers_are_warned_of(train, tmp_path):
    output, _ = train("wandb", "mlflow", "--each")
    assert wandb_runs(tmp_path) == WORKERS
    for tracker in ("W&B", "MLflow"):
        (line,) = [line for line in output.splitlines() if f"{tracker} run besides the leader's" in line]
        assert "worker 1" in line


@needs_package("tensorboard")
@needs_package("tensorflow")
def test_tensorboard_shows_all_curves_of_a_job_that_is_resumed(train, tmp_path):
    """Those of the job, and those of Keras's own callback."""
    pytest.importorskip("tensorboardX", reason="needs tensorboardX: pip install 'platoon-plugins[tensorboard]'")
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    starts, an_epoch = 3, 64 // 8 // WORKERS
    for epochs in range(1, starts + 1):
        train("tensorboard", f"--epochs={epochs}", options=["--resume", "kept", "--checkpoint-every", 1])
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    ends = [an_epoch * epoch for epoch in range(1, starts + 1)]
    for name, tag, steps in (
        ("board/center", "val_loss", ends),
        ("board/worker0", "epoch", ends),
        ("board/worker1", "epoch", ends),
        ("own/train", "epoch_loss", list(range(starts))),
        ("own/validation", "epoch_loss", list(range(starts))),
    ):
        shown = [event.step for event in runs.Tensors(name, tag)]
        assert shown == sorted(shown)
        assert set(shown) >= set(steps), name
