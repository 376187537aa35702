"""The one table of rules for tests: a new rule is one entry of `TABLE`, and nothing else here.

Each rule's equations are checked against the entry's values by hand; its loops in C, its kernels for devices and its
other forms against what NumPy makes of the equations, bit by bit.
"""

import re
from typing import Any, Callable, NamedTuple

import numpy as np

from platoon_base import rules
from platoon_base.centers.host_kernels import Plan
from platoon_base.rules import synchronous

__all__ = [
    "ON_DEVICES",
    "OUTER",
    "RULES",
    "TABLE",
    "Entry",
    "arguments_of",
    "by_the_equations",
    "form_and_scalars",
    "run_once",
]


class Entry(NamedTuple):
    """A rule, with what it makes of one element."""

    rule: Any  # Its arguments are known, and the values by hand are exact also in half precision.
    before: dict  # The names are those of the rule's form.
    after: dict
    others: tuple[Callable, ...] = ()  # These change arrays in the order of `before`, by other forms of the rule.


def alone(arrays, op):
    """Combine lists of arrays over one worker."""


def synchronous_easgd(alpha):
    return lambda x, c: synchronous.easgd([x], [c], alpha, alone)


def synchronous_downpour(x, c, x_old):
    """The accumulated updates are what the worker has moved by; the next ones begin at the center."""
    u = x - x_old
    synchronous.downpour([x], [u], [c], alone)
    assert not u.any()
    x_old[...] = x


TABLE = [
    Entry(rules.EASGD(0.25), {"x": 4, "c": 0}, {"x": 3, "c": 1}, (synchronous_easgd(0.25),)),
    Entry(rules.EAMSGD(0.5), {"x": 4, "c": 0}, {"x": 2, "c": 2}),
    Entry(rules.ASGD(), {"x": 5, "c": 10, "x_old": 2}, {"x": 13, "c": 13, "x_old": 13}, (synchronous_downpour,)),
    # x rides to 10; d = 4; m = 2 + 2; j = 8
    Entry(
        rules.CenterMomentum(alpha=0.5, momentum=0.5, gain=2.0).resolved(1),
        {"x": 8, "c": 2, "s_x": 1, "m": 4, "s": 3},
        {"x": 14, "c": 14, "s_x": 11, "m": 4, "s": 11},
    ),
    # x goes on to 6; e = 6; c = 1.5; a goes on by a quarter of 1.5 - 1
    Entry(
        rules.AveragedEASGD(alpha=0.25, pull=0.5, scale=1.0, k=1.0, warmup=0).resolved(4),
        {"x": 4, "c": 0, "x_old": 2, "a": 1},
        {"x": 3, "c": 1.5, "x_old": 3, "a": 1.125},
    ),
    # c goes on by half of 4
    Entry(rules.GoSGD(part=0.5), {"x": 6, "c": 10, "x_old": 2}, {"x": 12, "c": 12, "x_old": 12}),
    Entry(rules.LocalSGD(), {"d": 4, "c": 1}, {"c": 5}),
    # c goes on by half of 4 + 2 / 2, with the old m
    Entry(rules.SlowMo(0.5, 0.5), {"d": 4, "c": 1, "m": 2}, {"c": 3.5, "m": 5}),
    # c goes on by half of 4 + 5 / 2, with the new m
    Entry(rules.DiLoCo(0.5, 0.5), {"d": 4, "c": 1, "m": 2}, {"c": 4.25, "m": 5}),
]
RULES = [entry.rule for entry in TABLE if not rules.waits(entry.rule)]
OUTER = [entry.rule for entry in TABLE if rules.waits(entry.rule)]
# Of each kind of loops one; gossip has no center, on devices neither.
ON_DEVICES = list({rule.kernel: rule for rule in reversed(RULES) if not rules.gossips(rule)}.values())[::-1]


def form_and_scalars(rule, part=1.0):
    """Return the form of a rule, or of its outer step, with the values of its scalars."""
    return rule.form, rule.step_args(part) if rules.waits(rule) else rule.kernel_args()


def by_the_equations(rule, before, part=1.0):
    """Run a rule's equations on whole arrays as Python reads them; `Form.run` works otherwise.

    An element whose center, or center state, would not be finite stays as it was; the first of these is returned too.
    """
    form, scalars = form_and_scalars(rule, part)
    number = before[0].dtype.type
    names = dict(zip(form.arguments, (array.copy() for array in before)))
    names.update(zip(form.scalars, map(number, scalars)), T=number)
    with np.errstate(all="ignore"):
        for line in form.equations.strip().splitlines():
            name, _, expression = line.partition(":=")
            expression = re.sub(r"\b\d+(\.\d*)?", r"T(\g<0>)", expression.strip())
            names[name.strip()] = eval(expression, {}, names)
    finite = np.isfinite([names[name] for name in form.guarded]).all(axis=0)
    after = [np.where(finite, names[name], old) for name, old in zip(form.arguments, before)]
    return after, None if finite.all() else int(np.argmin(finite))


def arguments_of(rule, arrays):
    """Sort arrays, in the order of the form, as `Rule.sync` takes them: local, center, local states, center states."""
    split = 2 + len(rule.local_state)
    return arrays[0], arrays[1], tuple(arrays[2:split]), tuple(arrays[split:])


def run_once(rule, pieces):
    """Run a plan of the pieces' centers and states on their local arrays."""
    own, shared = ([list(states) for states in zip(*(piece[i] for piece in pieces))] for i in (2, 3))
    return Plan([piece[1] for piece in pieces], own, shared).run(rule, [piece[0] for piece in pieces])
