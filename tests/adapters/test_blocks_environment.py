"""Blocks on today's Python: where the tests find it, and that it trains."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts_here import script_path

from platoon_base import compat
from platoon_plugins.registrations.blocks import BLOCKS

ROOT = Path(__file__).resolve().parents[2]


def make_blocks(folder):
    """Write a package with the name and the shape of Blocks."""
    (folder / "blocks").mkdir(parents=True)
    (folder / "blocks" / "__init__.py").write_text("__version__ = '9.8.7'\n")
    (folder / "blocks" / "main_loop.py").write_text("")
    return folder


def require_blocks():
    compat.apply()
    pytest.importorskip("blocks.main_loop", reason="needs Blocks: BLOCKS=/path/to/a/checkout make test")


def collect(checkout):
    """Let pytest alone, without make test, collect tests that need Blocks."""
    if importlib.util.find_spec("theano") is None:
        pytest.skip("needs Theano: `make setup` installs it on Python 3.11")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/adapters/test_blocks_checkpoints.py"]
    environment = {**os.environ, "BLOCKS": str(checkout), "PYTHONPATH": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=400)


def test_pytest_takes_blocks_from_the_checkout_too(tmp_path):
    """And hands it on to the workers, by PYTHONPATH."""
    seen = tmp_path / "seen"
    (make_blocks(tmp_path) / "blocks" / "main_loop.py").write_text(
        f"import os; open({str(seen)!r}, 'w').write(os.environ['PYTHONPATH'])\n"
    )
    done = collect(tmp_path)
    assert done.returncode == 0, done.stdout
    assert seen.read_text().split(os.pathsep)[0] == str(tmp_path)


def test_pytest_refuses_a_path_without_blocks(tmp_path):
    done = collect(tmp_path)
    assert done.returncode == 4
    assert f"got BLOCKS={tmp_path}, but there is no {tmp_path}/blocks/__init__.py: name the" in done.stderr


@pytest.mark.blocks
@pytest.mark.theano
@pytest.mark.parametrize("model", ["mlp", "recurrent"])
@pytest.mark.slow
def test_blocks_trains_by_its_own_equations(model):
    """Two steps of gradient descent on the real main loop against the same two steps without it."""
    require_blocks()
    script = TRAINS
    done = subprocess.run([sys.executable, script, model], capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "trained"


@pytest.mark.blocks
@pytest.mark.theano
def test_forked_workers_use_what_fuel_and_blocks_import(platoon, tmp_path):
    """Fuel brings HDF5 and compressors with threads of their own, imported before the fork."""
    require_blocks()
    script = script_path("blocks_environment_forked_workers_read")
    done = platoon("launch", "-n", 2, "--log-dir", "logs", script)
    logs = [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(2)]
    assert done.returncode == 0, "\n".join(logs)
    assert [log.splitlines()[-1] for log in logs] == ["all read"] * 2


TRAINS = script_path("blocks_environment_trains")


def test_doctor_knows_a_checkout_and_how_to_install_blocks(platoon, tmp_path):
    def line_and_remedy(path):
        lines = platoon("doctor", "--all", environment={"PYTHONPATH": path}).stdout.splitlines()
        (number,) = (i for i, line in enumerate(lines) if line.split()[1:2] == ["Blocks"])
        return lines[number], lines[number + 1]

    folder = make_blocks(tmp_path / "checkout")
    line, _ = line_and_remedy(str(folder))
    assert line.split()[0] == "ok"
    if importlib.util.find_spec("blocks") is None:
        line, remedy = line_and_remedy("")
        assert line.split()[0] == "no"
        assert f"--no-deps --no-build-isolation '{BLOCKS}'" in remedy


@pytest.mark.parametrize(("lacks", "name"), [("blocks", "ParameterSync"), ("fuel", "shard_stream")])
def test_what_is_not_installed_is_named_with_the_remedy(lacks, name):
    code = f"import sys; sys.modules[{lacks!r}] = None; from platoon_plugins.blocks import EASGD, {name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"BackendUnavailableError: {name} needs {lacks.capitalize()}" in done.stderr
    assert "platoon doctor" in done.stderr
