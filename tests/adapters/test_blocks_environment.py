"""Blocks on today's Python: where make test finds it, what it says when it does not, and that it trains."""

import importlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from scripts_here import script_path

from platoon_base import compat

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / ".ci"
REMEDY = "BLOCKS=/path/to/a/checkout make test runs its tests"

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git: `apt-get install git`")


@pytest.fixture
def blocks_env(monkeypatch):
    """Import the module that finds Blocks for `make test`, as it would be imported there: from .venv."""
    pytest.importorskip("packaging", reason="needs .venv: `make setup` with Python 3.11")
    if not (CI.parent / ".venv").is_dir() or sys.version_info[:2] != (3, 11):
        pytest.skip("needs .venv: `make setup` with Python 3.11")
    monkeypatch.syspath_prepend(str(CI))
    monkeypatch.delenv("BLOCKS", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    before = set(sys.modules)
    yield importlib.import_module("blocks_env")
    for name in ("blocks_env", "common"):
        if name not in before:
            sys.modules.pop(name, None)


def make_blocks(folder, version="9.8.7"):
    """Write a package with the name and the shape of Blocks."""
    (folder / "blocks").mkdir(parents=True)
    (folder / "blocks" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (folder / "blocks" / "main_loop.py").write_text("")
    (folder / "setup.py").write_text(
        f"from setuptools import setup\nsetup(name='blocks', version={version!r}, packages=['blocks'])\n"
    )
    return folder


def run_tests(*arguments, **environment):
    """Run what `make test` runs after the set-up."""
    command = [sys.executable, CI / "run_tests.py", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=200, env={**os.environ, **environment}
    )


def require_blocks():
    compat.apply()
    pytest.importorskip("blocks.main_loop", reason="needs Blocks: BLOCKS=/path/to/a/checkout make test")


def test_a_path_without_blocks_is_refused_before_any_test(blocks_env, tmp_path):
    done = run_tests("--version", BLOCKS=str(tmp_path))
    assert done.returncode == 1
    assert f"FAILED: got BLOCKS={tmp_path}, but there is no {tmp_path}/blocks/__init__.py: name the" in done.stdout
    assert "== Python 3.11" not in done.stdout


def collect(checkout):
    """Let pytest alone, without make test, collect tests that need Blocks."""
    if importlib.util.find_spec("theano") is None:
        pytest.skip("needs Theano: `make setup` installs it on Python 3.11")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/adapters/test_blocks_checkpoints.py"]
    environment = {**os.environ, "BLOCKS": str(checkout), "PYTHONPATH": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=200)


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


def test_another_package_of_the_same_name_is_refused(blocks_env, tmp_path):
    (make_blocks(tmp_path) / "blocks" / "main_loop.py").unlink()
    with pytest.raises(blocks_env.SetupError, match="is another package of this name"):
        blocks_env.in_checkout(str(tmp_path))


def test_the_checkout_goes_before_what_is_installed(blocks_env, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("BLOCKS", os.path.relpath(make_blocks(tmp_path)))
    found = blocks_env.find()
    assert found.outcome.startswith("9.8.7, from /")
    first, second = found.environment["PYTHONPATH"].split(os.pathsep)
    assert os.path.isabs(first)
    assert os.path.samefile(first, tmp_path)
    assert second == "/elsewhere"


def test_what_can_be_imported_is_not_installed_again(blocks_env, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(make_blocks(tmp_path)))
    monkeypatch.setattr(blocks_env, "install", lambda *_: pytest.fail("installed again"))
    assert blocks_env.find() == (f"9.8.7, from {tmp_path}", {})


@needs_git
def test_without_its_repository_one_line_tells_that_the_tests_are_skipped(blocks_env, tmp_path, monkeypatch, capsys):
    asked = []

    def identify(environment):
        asked.append(environment)
        raise blocks_env.SetupError("it is not there")

    monkeypatch.setattr(blocks_env, "identify", identify)
    monkeypatch.setattr(blocks_env, "BLOCKS", f"git+file://{tmp_path}/no-repository")
    found = blocks_env.find()
    assert found.environment == {}
    assert found.outcome.startswith("skipped: cannot be installed (")
    assert "does " in found.outcome  # git's own words, cut: "does not exist", or "... appear to be a git repository"
    assert found.outcome.endswith(f"); {REMEDY}")
    assert "\n" not in found.outcome
    assert capsys.readouterr().out == "setup: installing Blocks from its repository\n"
    assert asked == [{}]


@needs_git
def test_a_repository_that_does_not_answer_takes_no_longer_than_the_limit(blocks_env):
    with socket.create_server(("127.0.0.1", 0)) as server:
        reference = f"git+git://127.0.0.1:{server.getsockname()[1]}/blocks"
        assert blocks_env.install(reference, timeout_s=4) == "not installed within 4 s"
        server.settimeout(0)
        connection, _ = server.accept()  # git has been there
        with connection:
            connection.settimeout(10)
            while connection.recv(4096):  # to the end: git is gone too
                pass


@needs_git
def test_a_repository_that_can_be_reached_is_installed(blocks_env, tmp_path, monkeypatch):
    repository = make_blocks(tmp_path / "repository")
    git = ["git", "-C", repository, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    target = tmp_path / "target"
    monkeypatch.setenv("PIP_TARGET", str(target))
    assert blocks_env.install(f"git+file://{repository}", timeout_s=60) == ""
    assert (target / "blocks" / "main_loop.py").exists()


def test_pip_without_words_gets_a_reason_too(blocks_env):
    assert blocks_env.reason_of("") == "pip says nothing"
    assert blocks_env.reason_of("fatal: unable to access 'https://host/': No route\nERROR: failed") == "No route"
    assert len(blocks_env.reason_of("ERROR: " + "word " * 100)) <= 100


@pytest.mark.blocks
@pytest.mark.theano
@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "recurrent"])
@pytest.mark.slow
def test_blocks_trains_by_its_own_equations(model):
    """Two steps of gradient descent on the real main loop against the same two steps without it."""
    require_blocks()
    script = TRAINS
    done = subprocess.run([sys.executable, script, model], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "trained"


@pytest.mark.blocks
@pytest.mark.theano
def test_forked_workers_use_what_fuel_and_blocks_import(platoon, tmp_path):
    """Fuel brings HDF5 and compressors with threads of their own, imported before the fork."""
    require_blocks()
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os
            import sys

            import fuel.datasets
            import numexpr
            import numpy as np
            import tables
            from blocks.main_loop import MainLoop
            from fuel.datasets import H5PYDataset

            # sys.modules by its name would keep the launcher from forking
            assert "platoon_base.worker_process.forkserver_main" in vars(sys)["modules"]
            path = f"{os.environ['PLATOON_RANK']}.hdf5"
            values = np.arange(300_000.0).reshape(-1, 3)
            with tables.open_file(path, "w") as file:
                for library in ("blosc", "zlib"):
                    filters = tables.Filters(complevel=5, complib=library)
                    file.create_carray("/", library, obj=values, filters=filters)
            with tables.open_file(path) as file:
                assert (file.root.blosc[:] == values).all()
            import h5py
            with h5py.File(path, "w") as file:
                file["features"] = values
                split = {"train": {"features": (0, len(values))}}
                file.attrs["split"] = H5PYDataset.create_split_array(split)
            data = H5PYDataset(path, which_sets=("train",), load_in_memory=True)
            data.load()
            assert (data.data_sources[0] == values).all()
            assert (numexpr.evaluate("2 * values + 1") == 2 * values + 1).all()
            print("all read")
            """
        )
    )
    done = platoon("launch", "-n", 2, "--log-dir", "logs", script)
    logs = [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(2)]
    assert done.returncode == 0, "\n".join(logs)
    assert [log.splitlines()[-1] for log in logs] == ["all read"] * 2


TRAINS = script_path("blocks_environment_trains")


def test_doctor_knows_a_checkout_and_how_to_install_blocks(platoon, blocks_env, tmp_path):
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
        assert f"--no-deps --no-build-isolation '{blocks_env.BLOCKS}'" in remedy


@pytest.mark.parametrize(("lacks", "name"), [("blocks", "ParameterSync"), ("fuel", "shard_stream")])
def test_what_is_not_installed_is_named_with_the_remedy(lacks, name):
    code = f"import sys; sys.modules[{lacks!r}] = None; from platoon_plugins.blocks import EASGD, {name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"BackendUnavailableError: {name} needs {lacks.capitalize()}" in done.stderr
    assert "platoon doctor" in done.stderr
