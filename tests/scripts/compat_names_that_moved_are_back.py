# ruff: noqa: F401, UP035 - it is the imports that are tested
import collections
import inspect
import os
import sys

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


def f(a, b=1, *c, **d):
    pass


spec = inspect.getargspec(f)
assert (spec.args, spec.varargs, spec.keywords, spec.defaults) == (["a", "b"], "c", "d", (1,))
assert tuple(spec) == (["a", "b"], "c", "d", (1,))
