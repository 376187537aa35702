"""Checkpoints as safetensors, opened by that library, and by the framework that the parameters are for."""

import sys

import numpy as np
import pytest
from click.testing import CliRunner
from needing import needs_package

from platoon_base.checkpoints.export import unique_names
from platoon_base.checkpoints.files import About, Checkpoint, CheckpointFolder
from platoon_base.cli.commands.export import command
from platoon_base.errors import ConfigurationError
from platoon_base.layout import Layout
from platoon_base.sharding import Position

pytestmark = pytest.mark.base

needs_safetensors = needs_package("safetensors", "pip install 'platoon-plugins[safetensors]'")


def save(folder, rule, value):
    """Save a checkpoint with the center ``value``, and the state beside it one higher; return its path."""
    center = [np.full((3, 4), value, "float32"), np.full((), value, "float64"), np.zeros((0, 2), "float16")]
    states = [[array + 1 for array in center]]
    about = About(seed=7, size=2, seconds=1.5, rule=rule, positions={rank: Position(2, 5, 25) for rank in range(2)})
    kept = CheckpointFolder(folder)
    try:
        return kept.save(Checkpoint.of(about, Layout.of(center, ["dense/W", "dense/b", ""]), center, states))
    finally:
        kept.close()


def run(*words):
    done = CliRunner().invoke(command, [*map(str, words)], standalone_mode=False, catch_exceptions=False)
    return done.output


def read(path):
    """Return tensors and metadata, by safetensors' own reader."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118 (no mapping)


@needs_safetensors
def test_the_library_opens_the_newest_center(tmp_path):
    save(tmp_path / "kept", "EASGD", 1.0)
    newest = save(tmp_path / "kept", "EASGD", 2.0)
    output = run(tmp_path / "kept", tmp_path / "center.safetensors")
    assert output == f"{tmp_path / 'center.safetensors'}: center of {newest}\n"
    tensors, metadata = read(tmp_path / "center.safetensors")
    assert {name: (array.dtype.name, array.shape) for name, array in tensors.items()} == {
        "dense/W": ("float32", (3, 4)),
        "dense/b": ("float64", ()),
        "parameter_2": ("float16", (0, 2)),
    }
    assert (tensors["dense/W"] == 2.0).all()
    assert metadata == {"values": "center", "rule": "EASGD", "steps": "50", "workers": "2"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["center.safetensors", "kept"]


@needs_safetensors
def test_an_average_is_written_where_the_rule_keeps_one(tmp_path):
    path = save(tmp_path / "kept", "AveragedEASGD", 2.0)
    run(path, tmp_path / "average")
    run("--center", path, tmp_path / "center")
    assert (read(tmp_path / "average")[0]["dense/W"] == 3.0).all()
    assert read(tmp_path / "average")[1]["values"] == "average of the center"
    assert (read(tmp_path / "center")[0]["dense/W"] == 2.0).all()


@needs_safetensors
def test_a_damaged_checkpoint_is_passed_over_in_a_folder_that_another_job_holds(tmp_path):
    whole = save(tmp_path / "kept", "EASGD", 1.0)
    damaged = save(tmp_path / "kept", "EASGD", 2.0)
    damaged.write_bytes(damaged.read_bytes()[:-40])
    running = CheckpointFolder(tmp_path / "kept")
    try:
        assert f"center of {whole}" in run(tmp_path / "kept", tmp_path / "center")
        assert damaged.exists()  # that is for the job to decide
    finally:
        running.close()


def test_without_the_library_the_remedy_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors", None)  # as where it is not installed
    with pytest.raises(ConfigurationError, match="pip install 'platoon-plugins.safetensors.'"):
        run(tmp_path, tmp_path / "center")


def test_each_parameter_has_a_name_of_its_own():
    assert unique_names(["W", "b", "W", "", "W_2", "parameter_3"]) == [
        "W", "b", "W_2_2", "parameter_3_2", "W_2", "parameter_3"
    ]  # fmt: skip
