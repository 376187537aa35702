"""The shims for Theano-era packages: applied on demand, harmless twice, absent from `import platoon_base`."""

import importlib.metadata
import importlib.util
import json
import os
from pathlib import Path

import pytest
from programs import run_python
from scripts_here import script_path

pytestmark = pytest.mark.base


def run(code, **environment):
    base = {k: v for k, v in os.environ.items() if k not in ("THEANO_FLAGS", "THEANORC")}
    words = [code] if isinstance(code, Path) else ["-c", code]
    return run_python(*words, timeout=400, env={**base, **environment}).stdout.strip()


def test_names_that_moved_are_back_and_importing_the_base_does_nothing():
    run(script_path("compat_names_that_moved_are_back"))


def test_the_blas_is_named_once_and_never_over_the_users_choice(tmp_path):
    code = "from platoon_base import compat; compat.apply(); import os; print(os.environ.get('THEANO_FLAGS'))"
    assert run(code).startswith("blas.ldflags=")
    assert run(code, THEANO_FLAGS="floatX=float32").startswith("floatX=float32,blas.ldflags=")
    assert run(code, THEANO_FLAGS="blas.ldflags=-lmine") == "blas.ldflags=-lmine"
    (tmp_path / "rc").write_text("[blas]\nldflags = -lmine\n")
    assert run(code, THEANORC=str(tmp_path / "rc")) == "None"


def test_all_who_wait_for_a_module_are_called(tmp_path):
    (tmp_path / "waited_for.py").write_text("ran = []")
    run(
        f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from platoon_base.system.imports import AfterImport
for name in "abc":
    sys.meta_path.insert(0, AfterImport({{"waited_for": lambda module, name=name: module.ran.append(name)}}))
import waited_for
assert waited_for.ran == ["a", "b", "c"], waited_for.ran
"""
    )


def require_theano():
    if importlib.util.find_spec("theano") is None:
        pytest.skip("needs Theano: `make setup` installs it on Python 3.11")


OWN_FLAGS = script_path("compat_own_flags")


@pytest.mark.theano
def test_a_script_that_sets_theanos_flags_itself_keeps_its_device_and_the_blas(platoon, tmp_path):
    require_theano()
    folder = tmp_path / "compiled"
    done = platoon(
        "launch", "-n", 1, "--log-dir", "logs", "--summary", "out.json", OWN_FLAGS,
        environment={"THEANO_FLAGS": f"floatX=float64,base_compiledir={folder}", "THEANORC": os.devnull},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert json.loads((tmp_path / "out.json").read_text())["found"] == f"float16 cpu {folder}"
    assert (
        "WARNING, worker 0: THEANO_FLAGS has device=cuda7, and this worker was given cpu, which is used" in done.stdout
    )


@pytest.mark.theano
def test_a_plugin_that_is_imported_after_theano_repairs_it_then():
    require_theano()
    run(
        """
import theano, theano.tensor as T
import platoon_plugins.lasagne
assert theano.gof.compilelock.lock.__module__ == "platoon_base.compat.theano.compile_lock"
assert theano.gof.cmodule.ModuleCache.refresh.__module__ == "platoon_base.compat.theano.module_cache"
x = T.vector("x", dtype="float32")
assert theano.function([x], x * 2)([3]) == [6]
""",
        THEANO_FLAGS="blas.ldflags=," + os.environ.get("THEANO_FLAGS", ""),
    )


@pytest.mark.theano
def test_modules_that_theano_has_removed_can_be_imported_in_any_form():
    require_theano()
    run(script_path("compat_modules_that_theano_has_removed"))


def test_theano_runs_scan_and_lasagne_pools():
    require_theano()
    run(script_path("compat_scan_and_pools"), THEANO_FLAGS=os.environ.get("THEANO_FLAGS", ""))


def require_keras(generation, remedy):
    try:
        version = importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version.partition(".")[0] != generation:
        pytest.skip(f"needs Keras {generation}, here is {version}: {remedy}")


@pytest.mark.theano
@pytest.mark.keras
def test_keras_2_loads_what_it_saved_with_the_state_of_its_optimizer(tmp_path):
    require_keras("2", "`make setup` installs it on Python 3.11")
    code = script_path("compat_keras_2_saves_its_optimizer")
    flags = os.environ.get("THEANO_FLAGS", "")
    run(code, KERAS_BACKEND="theano", THEANO_FLAGS=flags, MODEL=str(tmp_path / "model.h5"))


@pytest.mark.keras
def test_keras_3_and_its_h5py_stay_as_they_are(tmp_path):
    require_keras("3", "`make test-keras` installs it")
    run(script_path("compat_keras_3_stays"), MODEL=str(tmp_path / "model.keras"))
