"""An adapter of another project, installed as a distribution: `platoon doctor` and a launch find it."""

import json
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest
from scripts_here import script_path

import platoon_base
from platoon_base.system.imports import entry_points

pytestmark = pytest.mark.base

FRAMEWORK = """
import os
IMPORTED_BY = os.getpid()
COLOUR = "grey"
"""
ADAPTER = script_path("registered_adapter").read_text()
SETUP = """
from setuptools import setup
setup(
    name="tiny-adapter",
    version="4.5",
    py_modules=["tinyframe", *MODULES],
    entry_points={"platoon.frameworks": POINTS},
)
"""


@pytest.fixture
def install(run_command, tmp_path):
    """Build and install the adapter into a folder of its own, and return what puts that folder on the path."""
    pytest.importorskip("setuptools", reason="needs setuptools, to build a distribution: pip install setuptools")

    def run(**adapters):
        source, target = tmp_path / "source", tmp_path / "installed"
        source.mkdir()
        (source / "tinyframe.py").write_text(FRAMEWORK)
        points, adapters = [], adapters or {"tiny": ("FRAMEWORK", ADAPTER)}
        for point, (name, code) in adapters.items():
            (source / f"{point}_adapter.py").write_text(code)
            points.append(f"{point} = {point}_adapter:{name}")
        modules = [f"{point}_adapter" for point in adapters]
        (source / "setup.py").write_text(SETUP.replace("MODULES", repr(modules)).replace("POINTS", repr(points)))
        options = ["-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index"]
        run_command(sys.executable, "-m", "pip", "install", *options, "--target", target, source).require()
        assert list(target.glob("tiny_adapter-4.5.dist-info/entry_points.txt"))
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(target)]))
        return {"PYTHONPATH": path}

    return run


def test_a_launch_prepares_for_the_framework_of_an_adapter_of_another_project(platoon, install, tmp_path):
    environment = install()
    command = "launch", "-n", 2, "--log-dir", "logs", script_path("registered_script")
    run = platoon(*command, environment=environment).require()
    assert "WARNING, workers 0, 1: too tiny" in run.stdout
    assert "a line of the adapter" not in run.stdout
    for rank, log in enumerate(run.logs):
        assert "colour red forked True" in log
        assert f"rank {rank} INFO tiny_adapter: a line of the adapter" in log


def test_doctor_and_env_show_an_adapter_of_another_project(platoon, install):
    environment = {**install(), "TINY_FLAG": "set"}
    run = platoon("doctor", "--json", environment=environment).require()
    checks = {check["name"]: check for check in json.loads(run.stdout)}
    assert (checks["Tiny"]["works"], checks["Tiny"]["finding"]) == (True, "4.5")
    assert checks["Tiny"]["group"] == "frameworks"
    assert {"Theano", "Lasagne", "Fuel", "Blocks", "PyTorch", "JAX", "TensorFlow", "Keras"} <= checks.keys()
    run = platoon("env", "--json", environment=environment)
    facts = json.loads(run.stdout)
    assert facts["distributions"]["tiny-adapter"] == "4.5"
    assert facts["variables"]["TINY_FLAG"] == "set"


BROKEN = {
    "module": ("FRAMEWORK", "import a_module_that_is_missing", "cannot import module_adapter:FRAMEWORK: Module"),
    "other": ("OTHER", ADAPTER, "cannot import other_adapter:OTHER: AttributeError"),
    "kind": ("checks", ADAPTER, "kind_adapter:checks is function, not a platoon_base.frameworks.Framework"),
    "check": ("FRAMEWORK", ADAPTER.replace('assert "Theano"', 'assert "nothing"'), "its check failed: AssertionError"),
}


def test_broken_registrations_are_reported_and_end_nothing(platoon, install):
    environment = install(**{point: each[:2] for point, each in BROKEN.items()})
    run = platoon("doctor", "--json", environment=environment).require()
    checks = {check["name"]: check for check in json.loads(run.stdout)}
    for point, (_, _, why) in BROKEN.items():
        assert not checks[point]["works"]
        assert why in checks[point]["finding"]
        assert f"entry point '{point}'" in checks[point]["remedy"]
    assert "Keras" in checks


def test_the_entry_points_are_those_that_python_finds():
    everything = metadata.entry_points()
    groups = everything.groups if hasattr(everything, "groups") else everything.keys()
    assert "console_scripts" in groups
    for group in groups:
        theirs = everything.select(group=group) if hasattr(everything, "select") else everything[group]
        values = {}
        for point in theirs:
            values.setdefault(point.name, set()).add(point.value.partition("[")[0].replace(" ", ""))
        ours = entry_points(group)
        assert ours.keys() >= values.keys()
        assert all(ours[name] in found for name, found in values.items())


def test_what_a_checkout_declares_counts_before_what_is_installed(tmp_path, monkeypatch):
    """The metadata of an editable installation is as old as the installation."""
    installed = tmp_path / "installed"
    (installed / "old-1.0.dist-info").mkdir(parents=True)
    (installed / "old-1.0.dist-info" / "entry_points.txt").write_text(
        "[console_scripts]\nx = y:z\n\n"
        "[some.group]\na = old.module:A\nb=other : B [extra]\n; c = no:C\n\n[more]\nd = no:D\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[project.entry-points."some.group"]\n# a comment\na = "new.module:A"\n\n[project.scripts]\ne = "no:E"\n'
    )
    monkeypatch.setattr(sys, "path", [str(installed), str(tmp_path / "missing")])
    assert entry_points("some.group") == {"a": "old.module:A", "b": "other:B"}
    assert entry_points("some.group", tmp_path) == {"a": "new.module:A", "b": "other:B"}


def test_what_is_declared_here_can_be_used_without_an_installation(run_command):
    """A checkout on PYTHONPATH, with a Python that has no metadata of this project."""
    code = "from platoon_base.frameworks import registered; print(*sorted(registered().frameworks))"
    root = Path(platoon_base.__file__).parents[1]
    if not (root / "pyproject.toml").exists():
        pytest.skip("needs a checkout: the tests run on an installed wheel here")
    code = f"import sys; sys.path.append({str(root)!r}); {code}"
    run = run_command(sys.executable, "-S", "-c", code).require()
    assert run.stdout.split() == ["blocks", "keras", "lasagne", "theano", "torch"]
    assert run.stderr == ""
