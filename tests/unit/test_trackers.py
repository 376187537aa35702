"""Trackers of experiments: a job is one run, read back by the tracker's own package."""

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from needing import needs_package
from scripts_here import script_path

from platoon_base.cli import trackers
from platoon_base.cli.commands.launch import command
from platoon_base.errors import ConfigurationError

pytestmark = pytest.mark.base

TRAIN = script_path("trackers_train")
SYSTEM = ("cpu_percent", "memory_mb")
NAMES = ("mlflow", "wandb", "aim")
OWN = """
import json, time

class Lines:
    def __init__(self, name, folder):
        self.put("begin", name)

    def put(self, *words):
        with open("lines", "a") as file:
            print(json.dumps(words), file=file)

    def configure(self, settings):
        self.put("configure", settings)

    def log(self, values, step, worker):
        self.put("log", values, step, worker)

    def close(self, succeeded):
        self.put("close", succeeded)

class NeverBegins(Lines):
    def __init__(self, name, folder):
        time.sleep(600)

class NeverEnds(Lines):
    def close(self, succeeded):
        time.sleep(600)

class ExitsAtBegin(Lines):
    def __init__(self, name, folder):
        raise SystemExit("no key")

class Exits(Lines):
    def log(self, values, step, worker):
        raise SystemExit("no quota")
"""


@pytest.fixture
def track(platoon, tmp_path):
    """Train with trackers that write to the test's folder and ask nobody."""
    (tmp_path / "own.py").write_text(OWN)
    environment = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "AIM_REPO": str(tmp_path)}
    environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path}/mlflow.db"

    def run(*options, expected=0):
        done = platoon("launch", "-n", 2, *options, TRAIN, "--rate", "0.5", environment=environment)
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_a_class_of_the_user_gets_one_run(track, tmp_path):
    track("--seed", 7, "--tracker", "own:Lines")
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert lines[0] == ["begin", "trackers_train"]
    assert lines[-1] == ["close", True]
    settings = {name: value for kind, *rest in lines if kind == "configure" for name, value in rest[0].items()}
    wanted = {"workers": 2, "hosts": 1, "args": "--rate 0.5", "seed": 7, "rule": "EASGD(alpha=0.5)", "optimizer": "sgd"}
    assert {name: settings.get(name) for name in wanted} == wanted
    logged = [rest for kind, *rest in lines if kind == "log"]
    assert {worker for _, _, worker in logged} == {None, 0, 1}
    assert [(values["val_loss"], step) for values, step, worker in logged if "val_loss" in values] == [(0.25, 5)]
    for rank in range(2):
        assert [(values["loss"], step) for values, step, worker in logged if worker == rank][-1] == (0.75, 5)
        used = [values for values, _, worker in logged if worker == rank and "system/memory_mb" in values][-1]
        assert 0 < used["system/cpu_percent"] < 100 * os.cpu_count()
        assert 10 < used["system/memory_mb"] < 2000
    assert all("note" not in values for values, _, _ in logged)


def test_a_failed_job_is_a_failed_run(track, tmp_path):
    (tmp_path / "fails").touch()
    track("--tracker", "own:Lines", expected=1)
    assert json.loads((tmp_path / "lines").read_text().splitlines()[-1]) == ["close", False]


def test_a_tracker_that_does_not_answer_delays_a_job_only_so_long(track):
    assert "has not begun a run within 0.5 s" in track(
        "--tracker", "own:NeverBegins", "--timeout", "tracker=0.5", expected=2
    )
    assert "own:NeverEnds has not ended within 0.5 s" in track("--tracker", "own:NeverEnds", "--timeout", "tracker=0.5")


def test_a_tracker_that_exits_is_said_and_ends(track, tmp_path):
    assert "own:ExitsAtBegin cannot begin a run: SystemExit: no key" in track(
        "--tracker", "own:ExitsAtBegin", expected=2
    )
    assert "stopped writing for own:Exits: SystemExit: no quota" in track("--tracker", "own:Exits")
    assert json.loads((tmp_path / "lines").read_text().splitlines()[-1]) == ["close", True]


def test_a_file_in_the_package_is_a_tracker(tmp_path, monkeypatch):
    """That is all a new tracker needs: an option of its own, a name after --tracker, or both."""
    (tmp_path / "newest.py").write_text(
        "import click\n"
        "from platoon_base.cli.observers import Option\n"
        "class Tracker:\n    needs = ('no_such_package', 'pip install no-such-package')\n"
        "OPTION = Option(click.option('--newest'), 'newest', lambda value, job: value)\n"
    )
    monkeypatch.setattr(trackers, "__path__", [*trackers.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "platoon_base.cli.trackers.newest", raising=False)

    @click.command()
    @trackers.tracker_options
    def launch(trackers):
        click.echo(trackers(None))

    runner = CliRunner()
    assert runner.invoke(launch, ["--newest", "value"]).output == "['value']\n"
    help_ = " ".join(runner.invoke(launch, ["--help"]).output.split())
    assert re.search(r"run of a tracker: aim, mlflow, .*newest.*, or module:Class", help_)
    error = runner.invoke(launch, ["--tracker", "newest"]).exception
    assert isinstance(error, ConfigurationError)
    assert str(error).endswith("not installed: pip install no-such-package")


@pytest.mark.parametrize(
    ("package", "words", "complaint"),
    [
        *(
            (name, ("--tracker", name), f"got --tracker {name}, which needs {name}.*: pip install {name}")
            for name in NAMES
        ),
        ("tensorboardX", ("--tensorboard", "board"), "pip install 'platoon-plugins.tensorboard.'"),
        ("prometheus_client", ("--metrics-port", "9100"), "pip install 'platoon-plugins.metrics.'"),
    ],
)
def test_without_the_package_nothing_is_started(monkeypatch, tmp_path, package, words, complaint):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    with pytest.raises(ConfigurationError, match=complaint):
        CliRunner().invoke(command, [*words, "x.py"], standalone_mode=False, catch_exceptions=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "text"),
    [("wandbb", "there is no tracker 'wandbb'.*Did you mean wandb"), ("no_such:Class", "cannot be imported"),
     ("json:NoSuch", "cannot be imported")],
)  # fmt: skip
def test_unknown_names_are_refused(name, text):
    with pytest.raises((ConfigurationError, click.UsageError), match=text):
        CliRunner().invoke(command, ["--tracker", name, "x.py"], standalone_mode=False, catch_exceptions=False)


@needs_package("mlflow")
def test_a_job_is_one_run_of_mlflow(track, tmp_path):
    import mlflow

    track("--tracker", "mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert run.info.status == "FINISHED"
    assert run.data.params["rule"] == "EASGD(alpha=0.5)"
    assert run.data.params["workers"] == "2"
    assert run.data.metrics["val_loss"] == 0.25
    assert [(each.value, each.step) for each in client.get_metric_history(run.info.run_id, "worker1/loss")][-1] == (
        0.75,
        5,
    )
    assert {f"system/worker{rank}/{name}" for rank in range(2) for name in SYSTEM} <= set(run.data.metrics)


def records_of_wandb(data):
    """Yield the records of a file in LevelDB's log format."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:  # the rest of a block
            at += 2**15 - at % 2**15
        _, size, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""


@needs_package("wandb")
def test_a_job_is_one_run_of_wandb(track, tmp_path):
    from wandb.proto import wandb_internal_pb2

    track("--tracker", "wandb")
    (path,) = Path(tmp_path).glob("wandb/offline-run-*/run-*.wandb")
    config, history, status = {}, {}, None
    for data in records_of_wandb(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        for update in (*record.run.config.update, *record.config.update):
            config[update.key] = json.loads(update.value_json)
        for item in record.history.item:
            history["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
        status = record.exit.exit_code if record.HasField("exit") else status
    assert config["rule"] == "EASGD(alpha=0.5)"
    assert config["workers"] == 2
    assert history["val_loss"] == 0.25
    assert (history["worker1/loss"], history["worker1/step"]) == (0.75, 5)
    assert {f"system/worker{rank}/{name}" for rank in range(2) for name in SYSTEM} <= set(history)
    assert status == 0


@needs_package("aim")
def test_a_job_is_one_run_of_aim(track, tmp_path):
    import aim

    track("--tracker", "aim")
    # `aim up` indexes runs as they come; without it they cannot be read yet.
    reindex = [Path(sys.executable).with_name("aim"), "storage", "--repo", tmp_path, "reindex", "-y"]
    subprocess.run(reindex, check=True, capture_output=True, timeout=240)
    (name,) = aim.Repo(str(tmp_path)).list_all_runs()
    run = aim.Run(name, repo=str(tmp_path), read_only=True)
    assert run["rule"] == "EASGD(alpha=0.5)"
    assert run["workers"] == 2
    rows = {(each.name, each.context.to_dict().get("worker")): each.dataframe().iloc[-1] for each in run.metrics()}
    assert {key: (rows[key].step, rows[key].value) for key in [("val_loss", None), ("loss", 1)]} == {
        ("val_loss", None): (5, 0.25),
        ("loss", 1): (5, 0.75),
    }
    assert {(f"system/{name}", rank) for rank in range(2) for name in SYSTEM} <= set(rows)


@needs_package("tensorboardX")
def test_tensorboard_is_beside_the_logs(track, tmp_path):
    output = track("--tracker", "tensorboard")
    (folder,) = tmp_path.glob("platoon_logs/*/*/tensorboard")
    assert {each.name for each in folder.iterdir()} == {"center", "worker0", "worker1"}
    assert f"tensorboard: {folder.relative_to(tmp_path)}" in output
