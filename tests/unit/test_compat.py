"""The shims for Theano-era packages: applied on demand, harmless twice, absent from `import platoon_base`."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.base


def run(code, **environment):
    base = {k: v for k, v in os.environ.items() if k not in ("THEANO_FLAGS", "THEANORC")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, env={**base, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_names_that_moved_are_back_and_importing_the_base_does_nothing():
    run(
        """
import collections, inspect, os, sys
before = hasattr(collections, "Mapping"), hasattr(inspect, "getargspec"), len(sys.meta_path)
import platoon_base
assert before == (hasattr(collections, "Mapping"), hasattr(inspect, "getargspec"), len(sys.meta_path))
assert "THEANO_FLAGS" not in os.environ
from platoon_base import compat
compat.apply()
finders = len(sys.meta_path)
compat.apply()
assert len(sys.meta_path) == finders
from collections import Iterable, Mapping, MutableSequence
def f(a, b=1, *c, **d): pass
spec = inspect.getargspec(f)
assert (spec.args, spec.varargs, spec.keywords, spec.defaults) == (["a", "b"], "c", "d", (1,))
assert tuple(spec) == (["a", "b"], "c", "d", (1,))
"""
    )


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
from platoon_base.system.import_hook import AfterImport
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
    assert "WARNING, worker 0: THEANO_FLAGS has device=cuda7, this worker was given cpu, which counts" in done.stdout


@pytest.mark.theano
def test_flags_set_after_the_import_of_a_plugin_lose_no_blas():
    require_theano()
    run(
        """
import os
import platoon_plugins.blocks
os.environ["THEANO_FLAGS"] = "floatX=float16"
import theano
assert theano.config.floatX == "float16"
"""
    )


@pytest.mark.theano
def test_a_plugin_that_is_imported_after_theano_repairs_it_then():
    require_theano()
    run(
        """
import theano, theano.tensor as T
import platoon_plugins.lasagne
assert theano.gof.compilelock.lock.__module__ == "platoon_base.compat.theano.compile_lock"
assert theano.gof.cmodule.ModuleCache.refresh.__module__ == "platoon_base.compat.theano.cache_files"
x = T.vector("x", dtype="float32")
assert theano.function([x], x * 2)([3]) == [6]
""",
        THEANO_FLAGS="blas.ldflags=," + os.environ.get("THEANO_FLAGS", ""),
    )


@pytest.mark.theano
def test_modules_that_theano_has_removed_can_be_imported_in_any_form():
    pytest.importorskip("theano")
    run(
        """
from platoon_base import compat
compat.apply()
from theano.tensor.signal.downsample import max_pool_2d
import theano.tensor.signal.downsample as downsample
from theano.tensor.signal import downsample as again
from theano.compat.python2x import OrderedDict, defaultdict, izip
import collections
assert downsample is again and again.max_pool_2d is max_pool_2d
assert OrderedDict is collections.OrderedDict
"""
    )


def test_theano_runs_scan_and_lasagne_pools():
    require_theano()
    code = """
from platoon_base import compat
compat.apply()
import numpy, theano, lasagne
import theano.tensor as T
x = T.vector("x")
sums, _ = theano.scan(lambda a, total: a + total, sequences=x, outputs_info=T.zeros_like(x[0]))
f = theano.function([x], sums)
assert (f(numpy.arange(5).astype(theano.config.floatX)) == [0, 1, 3, 6, 10]).all()
image = T.tensor4("image")
pooled = lasagne.layers.MaxPool2DLayer(lasagne.layers.InputLayer((1, 1, 2, 2), image), 2)
g = theano.function([image], lasagne.layers.get_output(pooled))
assert g(numpy.arange(4).reshape(1, 1, 2, 2).astype(theano.config.floatX)).item() == 3
"""
    run(code, THEANO_FLAGS=os.environ.get("THEANO_FLAGS", ""))


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
    code = """
import os
from platoon_base import compat
compat.apply()
compat.apply()
import h5py, keras, numpy as np
from keras.engine.saving import load_attributes_from_hdf5_group
from keras.layers import Dense
compat.apply()
model = keras.Sequential([Dense(5, activation="tanh", input_shape=(3,)), Dense(2, activation="softmax")])
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
rng = np.random.RandomState(0)
x, y = rng.randn(40, 3), np.eye(2)[rng.randint(0, 2, 40)]
model.fit(x, y, batch_size=10, epochs=2, verbose=0)
path = os.environ["MODEL"]
model.save(path)
loaded = keras.models.load_model(path)
np.testing.assert_array_equal(loaded.predict(x), model.predict(x))
state = model.optimizer.get_weights()
assert state[0] == 8 and len(state) > 8 and all(np.any(moment) for moment in state[1:9])
for ours, theirs in zip(state, loaded.optimizer.get_weights(), strict=True):
    np.testing.assert_array_equal(theirs, ours)
for either in model, loaded:
    either.fit(x, y, batch_size=10, epochs=1, verbose=0, shuffle=False)
for ours, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
    np.testing.assert_array_equal(theirs, ours)
model.save_weights(path)
before = model.get_weights()
model.set_weights([weight + 1 for weight in before])
model.load_weights(path)
for ours, theirs in zip(before, model.get_weights(), strict=True):
    np.testing.assert_array_equal(theirs, ours)
with h5py.File(path, "w") as file:
    file.attrs.create("names", ["a", "\u00e4"], dtype=h5py.string_dtype())
    file.attrs.create("table", [["a", "b"], ["c", "d"]], dtype=h5py.string_dtype())
    file.attrs["numbers"] = [1.0, 2.0]
    file.attrs["nothing"] = h5py.Empty("f")
    assert load_attributes_from_hdf5_group(file, "names") == ["a", "\u00e4"]
    assert file.attrs["table"].shape == (2, 2) and file.attrs["table"][1, 0].decode("utf8") == "c"
    assert file.attrs["numbers"].tolist() == [1.0, 2.0] and file.attrs["nothing"] == h5py.Empty("f")
    assert file.attrs.get("missing") is None
"""
    flags = os.environ.get("THEANO_FLAGS", "")
    run(code, KERAS_BACKEND="theano", THEANO_FLAGS=flags, MODEL=str(tmp_path / "model.h5"))


@pytest.mark.keras
def test_keras_3_and_its_h5py_stay_as_they_are(tmp_path):
    require_keras("3", "`make test-keras` installs it")
    code = """
import os
from platoon_base import compat
compat.apply()
import h5py, keras, numpy as np
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile("adam", "mse")
x = np.ones((8, 3), "float32")
model.fit(x, x[:, :2], batch_size=4, verbose=0)
path = os.environ["MODEL"]
model.save(path)
loaded = keras.models.load_model(path)
np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
for ours, theirs in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
    np.testing.assert_array_equal(theirs.numpy(), ours.numpy())
with h5py.File(path, "w") as file:
    file.attrs["name"] = "text"
    assert type(file.attrs["name"]) is str
"""
    run(code, MODEL=str(tmp_path / "model.keras"))
