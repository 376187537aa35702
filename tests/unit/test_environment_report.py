"""`platoon env`: the facts for a report of a fault, and no secret among them."""

import json
import os
import platform
from importlib import metadata
from pathlib import Path

import pytest
from programs import run_python

from platoon_base.cli.commands.env import shown_variables

pytestmark = pytest.mark.base

SECRET = "hunter2"


@pytest.fixture
def tell():
    """Run `platoon env` with variables of a user's own."""

    def run(*words, **environment):
        return run_python("-m", "platoon_base", "env", *words, env={**os.environ, **environment}).stdout

    return run


def test_the_report_has_versions_limits_and_variables(tell):
    told = json.loads(tell("--json", THEANO_FLAGS="device=cpu", OMP_NUM_THREADS="3"))
    assert told["Python"]["version"].endswith(platform.python_version())
    assert told["distributions"]["numpy"] == metadata.version("numpy")
    assert told["machine"]["cores"].startswith(f"{len(os.sched_getaffinity(0))} of ")
    assert "GB free" in told["limits"]["/dev/shm"]
    assert told["variables"]["THEANO_FLAGS"] == "device=cpu"
    assert told["variables"]["OMP_NUM_THREADS"] == "3"
    assert told["devices"]["CUDA"]


def test_no_secret_is_in_the_report(tell):
    text = tell(
        PLATOON_SECRET=SECRET,
        TORCH_API_KEY=SECRET,
        JAX_AUTH_TOKEN=SECRET,
        AWS_SECRET_ACCESS_KEY=SECRET,
        MY_APPLICATION=SECRET,
        PYTHONPATH=f"https://me:{SECRET}@host/x:{os.environ['PYTHONPATH']}",
    )
    assert SECRET not in text
    assert "PLATOON_SECRET" in text
    assert "MY_APPLICATION" not in text


def test_the_home_folder_is_not_told():
    home = str(Path.home())
    assert shown_variables({"PYTHONPATH": f"{home}/lib:{home}stead/lib"}) == {"PYTHONPATH": f"~/lib:{home}stead/lib"}
