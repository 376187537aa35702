"""`platoon doctor` in real environments: what works there, what does not, and the remedy that fits."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

import platoon_base

PURE = ("pyzmq", "posix_ipc", "msgspec", "click", "rich", "markdown-it-py", "mdurl", "Pygments")


class Doctor:
    """What `platoon doctor` says in an environment, by the name of what was looked at."""

    def __init__(self, python, environment):
        base = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
        done = subprocess.run(
            [python, "-m", "platoon_base", "doctor", "--json"],
            env={**base, "PYTHONPATH": str(Path(platoon_base.__file__).parents[1]), **environment},
            capture_output=True,
            text=True,
            timeout=460,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self._checks = {check["name"]: check for check in json.loads(done.stdout)}

    @property
    def names(self):
        return list(self._checks)

    def __getitem__(self, name):
        """Return whether something works, what was found, and the remedy."""
        check = self._checks[name]
        return check["works"], check["finding"], check["remedy"]


@pytest.fixture
def environment(tmp_path):
    """Make an environment of this Python with some of the packages that are installed here, and others from PyPI."""

    def make(here, from_pypi=()):
        venv, packages = tmp_path / "venv", tmp_path / "packages"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        packages.mkdir()
        for name in here:
            for file in {path.parts[0] for path in metadata.files(name) if path.parts[0] not in ("..", "__pycache__")}:
                (packages / file).symlink_to(metadata.distribution(name).locate_file(file))
        if from_pypi:
            options = ["-q", "--disable-pip-version-check", "--no-deps", "--target", packages]
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", *options, *from_pypi],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                pytest.skip(f"needs PyPI: {done.stderr.strip().splitlines()[-1]}")
        site = sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})
        Path(site, "packages.pth").write_text(f"{packages}\n")
        return venv / "bin" / "python"

    return make


@pytest.mark.base
@pytest.mark.slow
@pytest.mark.promise
def test_where_there_is_no_framework_each_is_named_with_how_to_get_it(environment):
    told = Doctor(environment(["numpy", *PURE]), {})
    for name, remedy in (
        ("Theano", "pip install 'platoon-plugins[theano]'"),
        ("Lasagne", "pip install 'platoon-plugins[lasagne]'"),
        ("PyTorch", "pip install torch"),
        ("JAX", "pip install jax"),
        ("TensorFlow", "pip install tensorflow"),
        ("Keras", "pip install 'platoon-plugins[keras]', and torch, jax or tensorflow"),
    ):
        works, finding, advice = told[name]
        assert (works, finding) == (False, "not installed")
        assert remedy in advice
    assert not [name for name in told.names if re.search(r"\bmake\b(?! an)", told[name][2])], (
        "users of pip have no Makefile"
    )


@pytest.mark.slow
@pytest.mark.theano
@pytest.mark.skipif(importlib.util.find_spec("theano") is None, reason="needs Theano")
def test_theano_with_a_numpy_that_it_cannot_compile_with_does_not_work(environment, tmp_path):
    python = environment(["Theano", "six", *PURE], from_pypi=["numpy==2.2.6"])
    works, finding, remedy = Doctor(python, {"THEANO_FLAGS": f"base_compiledir={tmp_path / 'compiled'}"})["Theano"]
    assert not works
    assert finding.startswith("1.0.5, cannot compile with NumPy 2.2.6: it needs 1.23 or older: ")
    assert "pip install 'numpy<1.24'" in remedy


@pytest.mark.slow
@pytest.mark.keras
@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs Keras")
@pytest.mark.parametrize("chosen", [True, False])
def test_keras_is_told_of_with_the_back_end_that_works(tmp_path, chosen):
    """On the stack of this test run, with its back end chosen and with none: then the default is TensorFlow."""
    backend, version = os.environ["KERAS_BACKEND"], metadata.version("keras")
    title = {"theano": "Theano", "torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}[backend]
    told = Doctor(sys.executable, {"KERAS_HOME": str(tmp_path), **({"KERAS_BACKEND": backend} if chosen else {})})
    assert told[title][0]
    works, finding, remedy = told["Keras"]
    if chosen or backend == "tensorflow":
        assert (works, finding, remedy) == (True, f"{version}, on {title}", "")
    else:
        assert not works
        assert finding.startswith(f"{version}, cannot be imported with its default back end: ")
        assert remedy.startswith("set KERAS_BACKEND=")
        assert backend in remedy
