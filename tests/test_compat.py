"""The shims for Theano-era packages: applied on demand, harmless twice, absent from `import platoon_base`."""

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.base


def run(code, **environment):
    base = {k: v for k, v in os.environ.items() if k not in ("THEANO_FLAGS", "THEANORC")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env={**base, **environment}
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


@pytest.mark.theano
def test_theano_runs_scan_and_lasagne_pools():
    if importlib.util.find_spec("theano") is None:
        pytest.skip("needs Theano: `make setup` installs it on Python 3.11")
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
