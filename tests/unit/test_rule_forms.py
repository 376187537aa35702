"""Every rule of the package against its entry in `rule_table`, and what is said at once of one that is incomplete."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from rule_table import OUTER, RULES, TABLE, arguments_of, by_the_equations, form_and_scalars, run_once

from platoon_base import compat, connect, rules
from platoon_base.centers import host_kernels
from platoon_base.centers.host_kernels import (
    BLOCK,
    HAVE_FUSED,
    STEP_BLOCK,
    Plan,
    RoundKernels,
    find_fused,
    undo_bytes,
)
from platoon_base.centers.host_source import HEADER, header_text
from platoon_base.errors import ConfigurationError
from platoon_base.layout import Layout
from platoon_base.rules import Adopt, CenterState, Form, LocalState, OuterRule, Rule, require_rule
from platoon_base.rules.center import form_of, local_sources, momenta
from platoon_base.rules.forms import COMPILED

pytestmark = pytest.mark.base

needs_fused = pytest.mark.skipif(
    not HAVE_FUSED, reason="no C extension (or PLATOON_NO_KERNELS is set): python setup.py build_ext --inplace"
)
BY_NAME = [pytest.param(entry, id=type(entry.rule).__name__) for entry in TABLE]
REMEDY = "run `python -m platoon_base.centers.host_source`, and then `python setup.py build_ext --inplace`"


def draw(count, size, dtype, seed=0):
    """Values of all sizes, zeros of either sign, and here and there NaN, infinity, and a difference that overflows."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-9, 9 if dtype != "float16" else 4, (count, size))
    arrays = list((rng.standard_normal((count, size)) * sizes).astype(dtype))
    places = rng.permutation(size)[:8]
    for array, place in zip(arrays, places):
        array[place] = -0.0
    arrays[0][places[5]], arrays[1][places[6]] = np.nan, np.inf
    arrays[0][places[7]], arrays[1][places[7]] = 0.9 * np.finfo(dtype).max * np.array([1, -1])
    return arrays


def test_every_rule_is_in_the_table():
    offered = {
        name for name, found in vars(rules).items()
        if inspect.isclass(found) and issubclass(found, Rule) and found not in (Rule, OuterRule)
    }  # fmt: skip
    missing = offered - {type(entry.rule).__name__ for entry in TABLE}
    assert not missing, f"add an entry for {', '.join(missing)} to TABLE of tests/helpers/rule_table.py"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("entry", BY_NAME)
def test_the_equations_are_the_values_by_hand(entry, dtype):
    form, scalars = form_and_scalars(entry.rule)
    assert form.arguments == tuple(entry.before)
    arrays = {name: np.full(3, value, dtype) for name, value in entry.before.items()}
    form.run(arrays.values(), scalars)
    for name, value in entry.after.items():
        assert arrays[name].tolist() == [value] * 3, name
        assert arrays[name].dtype == dtype
    by_python, first = by_the_equations(entry.rule, [np.full(3, value, dtype) for value in entry.before.values()])
    assert first is None
    assert {name: found[0] for name, found in zip(form.arguments, by_python) if name in entry.after} == entry.after


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_sync_leaves_out_what_the_equations_make_infinite(rule, dtype, monkeypatch):
    monkeypatch.setattr(Plan, "fused_form", lambda self, rule: None)
    require_bits(rule, draw(len(form_of(rule).arguments), BLOCK + 99, dtype))


@needs_fused
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [50, BLOCK + 99])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_loops_in_c_are_the_equations_bit_by_bit(rule, size, dtype):
    form = form_of(rule)
    assert form is COMPILED[rule.kernel]
    center, *states = ([np.zeros(8, dtype)] for _ in form.arguments[1:])
    plan = Plan(center, states[: len(form.local)], states[len(form.local) :])
    assert plan.fused_form(rule) is not None, REMEDY
    assert plan.fused_form(Adopt(rule)) is not None
    for seed in range(3):
        require_bits(rule, draw(len(form.arguments), size, dtype, seed))


def require_bits(rule, before):
    """One synchronization of copies of ``before`` against the equations."""
    now = [array.copy() for array in before]
    said = run_once(rule, [arguments_of(rule, now)])
    expected, first = by_the_equations(rule, before)
    assert first is not None, "nothing was to be left out"
    assert said == (0, first)
    for name, got, want in zip(rule.form.arguments, now, expected):
        assert got.tobytes() == want.tobytes(), f"{name} of {rule}: {REMEDY}"


@pytest.mark.parametrize("by", [pytest.param("c", marks=needs_fused), "numpy"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", OUTER, ids=str)
def test_outer_steps_are_the_equations_bit_by_bit(rule, dtype, by, monkeypatch):
    if by == "c":
        assert find_fused(rule.step_kernel, np.dtype(dtype)) is not None, REMEDY
    else:
        monkeypatch.setattr(host_kernels, "find_fused", lambda *args: None)
    count, part, size = 3, 0.7, 999
    total, c, *states = draw(len(rule.form.arguments), size, dtype)
    total[~np.isfinite(total)] = 1  # what is not finite was left out of the sum
    with np.errstate(all="ignore"):
        expected, first = by_the_equations(rule, [total / total.dtype.type(count), c, *states], part)
    undo = np.zeros(undo_bytes(Layout.of([c]), len(states)), "uint8")
    kernels = RoundKernels(c, tuple(states), undo, np.empty(8 * STEP_BLOCK, "uint8"))
    with np.errstate(all="ignore"):
        assert kernels.step(rule, slice(0, size), [total], count, part) == first is not None
    for name, got, want in zip(rule.form.arguments[1:], (c, *states), expected[1:]):
        assert got.tobytes() == want.tobytes(), f"{name} of {rule}: {REMEDY}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("entry", BY_NAME)
def test_other_forms_of_a_rule_are_the_equations(entry, dtype):
    rng = np.random.default_rng(1)
    before = [rng.standard_normal(99).astype(dtype) for _ in entry.before]
    expected, _ = by_the_equations(entry.rule, before)
    for other in entry.others:
        now = [array.copy() for array in before]
        other(*now)
        for name, got, want in zip(entry.before, now, expected):
            assert got.tobytes() == want.tobytes(), name


def test_the_theano_rules_of_one_worker_are_the_equations():
    compat.apply()
    theano = pytest.importorskip("theano")
    from platoon_base.platoon_api import global_dynamics

    easgd, asgd = (next(e for e in TABLE if type(e.rule).__name__ == name) for name in ("EASGD", "ASGD"))
    x, c = (theano.shared(np.full(5, easgd.before[name], "float32")) for name in ("x", "c"))
    rule = global_dynamics.EASGD()
    rule.make_rule(x, c, easgd.rule.alpha)
    rule()
    assert (x.get_value()[0], c.get_value()[0]) == (easgd.after["x"], easgd.after["c"])
    moved = asgd.before["x"] - asgd.before["x_old"]
    x, u, c = (theano.shared(np.full(5, v, "float32")) for v in (asgd.before["x"], moved, asgd.before["c"]))
    rule = global_dynamics.Downpour()
    rule.make_rule(x, u, c)
    rule()
    assert (x.get_value()[0], u.get_value()[0], c.get_value()[0]) == (asgd.after["x"], 0, asgd.after["c"])


def test_the_loops_in_c_were_made_from_the_forms_as_they_are():
    assert HEADER.read_text() == header_text(), REMEDY


def test_a_rule_without_a_form_says_so_at_once():
    """When the class is made: not when it synchronizes for the first time, in the midst of a training."""
    with pytest.raises(ConfigurationError, match=r"(?s)rule Halfway without a form: declare form = Form.*define sync"):
        type("Halfway", (Rule,), {})
    with pytest.raises(ConfigurationError, match=r"(?s)rule Outer without a form.*step_kernel.*define step"):
        type("Outer", (OuterRule,), {"sync": lambda self, *arrays: None})
    type("Halfway", (Rule,), {"sync": lambda self, *arrays: None})
    type("Outer", (OuterRule,), {"step": lambda self, *arrays: None})


def test_a_worker_says_that_numpy_applies_a_rule_without_a_form(caplog):
    class Slow(Rule):
        def sync(self, local, center, local_state=(), center_state=()):
            center[...] = local

    with caplog.at_level("INFO"), connect() as worker:
        worker.init_shared_params([np.zeros(3)], rules.EASGD())
        worker.release_shared_params()
        assert "has no form" not in caplog.text
        worker.init_shared_params([np.zeros(3)], Slow())
    assert "rank 0: Slow has no form, so NumPy applies it" in caplog.text
    assert "declare its equations for one element, see platoon_base.rules.Rule" in caplog.text


def test_what_a_rule_of_the_users_own_lacks_is_said_at_once():
    class Bare:
        center_state = ()

        def resolved(self, size):
            return self

    with pytest.raises(ConfigurationError, match=r"without local_state, sync: derive its class from .*Rule"):
        require_rule(Bare())
    Bare.waits, Bare.local_state = True, ()
    with pytest.raises(ConfigurationError, match="without step: derive"):
        require_rule(Bare())
    with pytest.raises(ConfigurationError, match="pass a rule"):
        require_rule(Rule())


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"form": Form("c := x")}, "declare a kernel beside it"),
        ({"kernel": "adopt", "form": Form("c := x")}, "that no other rule uses"),
        ({"kernel": "own", "form": Form("c = x")}, "'c = x' is not a line such as"),
        ({"kernel": "own", "form": Form("c := max(x, c)")}, "is not a line such as"),
        ({"kernel": "own", "form": Form("c := x ** 2")}, "is not a line such as"),
        ({"kernel": "own", "form": Form("c := c + beta * x")}, "needs beta: set it above, or declare it"),
        ({"kernel": "own", "form": Form("a := 2\nc := a * x", ("a",))}, "changes a scalar"),
        ({"kernel": "own", "form": Form("x := c")}, "nothing sets c"),
        ({"kernel": "own", "form": Form("c := x"), "center_state": ("m",)}, "nothing sets m"),
        ({"kernel": "own", "form": Form("c := x"), "local_state": ("c",)}, "each name must be different"),
        ({"kernel": "own", "form": Form("x_1 := x\nc := x_1")}, "'x_1' cannot be used as a name"),
        ({"kernel": "own", "form": Form("int := x\nc := int")}, "'int' cannot be used as a name"),
        ({"kernel": "own", "form": Form("d := x - c\nc := x", adds="d")}, r"c := c \+ d; leave it out"),
        ({"kernel": "own", "form": Form("c := x", tuple("abefghjkl"))}, "at most 8 scalars"),
        ({"local_state": ("s",), "center_state": ("s",)}, r"by name alone: declare LocalState\('s_x'"),
        ({"local_state": (LocalState("s_x", follows="s"),)}, r"follows 's': declare CenterState\('s', kept=True\)"),
        ({"local_state": (LocalState("s_x", follows="s"),), "center_state": ("s",)}, "kept=True"),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_be_is_refused_at_once(members, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        type("Own", (Rule,), members)


@dataclasses.dataclass(frozen=True)
class Own(Rule):
    """A rule as a user may write it: all that it is, in one place."""

    kernel: ClassVar = "own"
    local_state: ClassVar = (LocalState("s_x", follows="s"),)
    center_state: ClassVar = (CenterState("m"), CenterState("s", kept=True))
    form: ClassVar = Form(
        """
        seen := s
        m := m / 2 + -(c - x) * 0.25
        s := s + m
        c := c + m
        x := c
        s_x := seen
        """
    )


def test_a_rule_of_the_users_own_is_one_declaration():
    rule = Own()
    require_rule(rule)
    assert (local_sources(rule), momenta(rule), rule.period, rules.waits(rule)) == ([1], [0], 10, False)
    assert rule.resolved(3) == rules.at_period(rule, 3) == rule
    require_bits(rule, draw(5, BLOCK + 99, "float32"))
    assert "own" not in COMPILED
    x, c, s_x, m, s = (np.full(2, value) for value in (8.0, 4.0, 0.0, 2.0, 3.0))
    rule.sync(x, c, (s_x,), (m, s))
    assert [array[0] for array in (x, c, s_x, m, s)] == [6, 6, 3, 2, 5]


@dataclasses.dataclass(frozen=True)
class Reflected(Rule):
    kernel: ClassVar = "reflected"
    form: ClassVar = Form(
        """
        c := x - c
        x := c
        """
    )


def test_an_array_that_is_subtracted_from_another_is_not_exchanged_with_it():
    x, c = np.full(2, 8.0), np.full(2, 3.0)
    Reflected().sync(x, c, (), ())
    assert [*x, *c] == [5, 5, 5, 5]


NEW_RULE = '''"""A rule that was not there before."""

from dataclasses import dataclass
from typing import ClassVar

from platoon_base.rules.center import Rule
from platoon_base.rules.forms import Form


@dataclass(frozen=True)
class Halfway(Rule):
    """c := (c + x) / 2."""

    kernel: ClassVar = "halfway"
    form: ClassVar = Form("c := (c + x) / 2")
'''


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_sync_of_a_derived_class_is_what_runs_whatever_the_dtype(dtype):
    """The class above has loops in C for two of these dtypes, which do not do what this one does."""

    class Twice(rules.EASGD):
        def sync(self, local, center, local_state=(), center_state=()):
            for _ in range(2):
                super().sync(local, center, local_state, center_state)

    x, c, expected_x, expected_c = (np.array([value], dtype) for value in (4, 0, 4, 0))
    run_once(Twice(0.25), [(x, c, (), ())])
    for _ in range(2):
        rules.EASGD(0.25).sync(expected_x, expected_c)
    assert (x, c) == (expected_x, expected_c)


def test_a_new_rule_is_one_file(tmp_path):
    """A module in the folder of the rules is offered, chosen by its name, and gets loops in C and kernels."""
    (tmp_path / "halfway.py").write_text(NEW_RULE)
    code = f"""
import importlib.machinery, os, sys

class Folder(importlib.machinery.PathFinder):
    '''Finds the modules of the package as if the folder were a part of it.'''
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = super().find_spec(name, path, target)
        if name == "platoon_base.rules" and found is not None:
            found.submodule_search_locations.append({str(tmp_path)!r})
        return found

sys.meta_path.insert(0, Folder)
import numpy as np
from platoon_base import connect, rules
from platoon_base.centers.device_source import operations
from platoon_base.centers.host_source import header_text
from platoon_base.rules.defaults import parse_rule

rule = parse_rule("Halfway")
assert rule == rules.Halfway()
x, c = np.full(2, 4.0), np.zeros(2)
rule.sync(x, c)
assert c.tolist() == [2, 2]
assert "halfway_float32" in header_text()
assert operations(rule)["halfway"].compute == "T c_1 = (c + x) / (T)2;"
"""
    root = str(Path(rules.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=root)
