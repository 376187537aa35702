"""The rules for one element of a center on devices, in C: a new rule is an entry of `FORMS`, and nothing else here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from platoon_base.rules.center import Rule, local_sources, momenta

__all__ = ["FORMS", "Form", "Operation", "form_of", "operations"]


class Form(NamedTuple):
    """A rule for one element, in C.

    The worker's value is named ``x``, the center's ``c``, and the states and scalars as given here. All have the type
    ``T``, float or double. ``times(a, b)`` is a product that is rounded before it is added, so that the bits are those
    of the NumPy form. An element is left out on all sides if its center or a center state would not be finite.

    Attributes
    ----------
    new : mapping of str to str
        The new value of everything that changes, in terms of the old ones and of ``compute``.
    compute : str
        Declares what the new values have in common.
    scalars : tuple of str
        Names of the rule's ``kernel_args()``.
    local_state, center_state : tuple of str
        Names of the rule's states, as many as the rule has, in its order; a name may stand only once.
    adds : str
        What the center grows by, for synchronizing without locks by an atomic addition; "" if that is not all of the
        rule. It synchronizes under locks then, whatever is asked for.
    """

    new: Mapping[str, str]
    compute: str = ""
    scalars: tuple[str, ...] = ()
    local_state: tuple[str, ...] = ()
    center_state: tuple[str, ...] = ()
    adds: str = ""


FORMS = {
    "easgd": Form(
        scalars=("alpha",),
        compute="T d = times(alpha, x - c);",
        new={"x": "x - d", "c": "c + d"},
        adds="d",
    ),
    # What others add between the read and the addition, this worker sees the next time: x_old is what it has read.
    "asgd": Form(
        local_state=("x_old",),
        compute="T d = x - x_old, both = c + d;",
        new={"x": "both", "c": "both", "x_old": "both"},
        adds="d",
    ),
    "center_momentum": Form(
        scalars=("alpha", "decay", "gain"),
        local_state=("s_x",),
        center_state=("m", "s"),
        compute="T carried = x + (s - s_x), d = times(alpha, carried - c); "
        "T pull = times(decay, m) + times(1 - decay, d), j = times(gain, pull);",
        new={"x": "carried + (j - d)", "c": "c + (j + d)", "m": "pull", "s": "s + j", "s_x": "s + j"},
    ),
}


class Operation(NamedTuple):
    """A change of each element, made by one kernel; its attributes are those of a `Form`."""

    new: Mapping[str, str]
    compute: str = ""
    scalars: tuple[str, ...] = ()
    adds: str = ""
    locked: bool = False


def form_of(rule: Rule) -> Form | None:
    """Return the form of a rule; None if it has none."""
    form = FORMS.get(rule.kernel or "")
    if form is None or (len(form.local_state), len(form.center_state)) != (
        len(rule.local_state),
        len(rule.center_state),
    ):
        return None
    return form


def operations(rule: Rule) -> dict[str, Operation]:
    """Return all that is done with the center of a rule that has a form, by the names of the kernels.

    These are the rule itself, its ``_atomic`` form without locks if it has one, both kinds of `Adopt`, ``overwrite``
    (c := x) and ``take_over`` (x := c), which start the local states, and ``pull`` (x := c).
    """
    form, kernel = FORMS[str(rule.kernel)], str(rule.kernel)
    sources = dict(zip(form.local_state, local_sources(rule)))
    followed = {name: form.center_state[source] for name, source in sources.items() if source is not None}
    remembered = [name for name, source in sources.items() if source is None]
    adopt = {"c": "x", **{form.center_state[i]: f"x == c ? {form.center_state[i]} : 0" for i in momenta(rule)}}
    found = {
        kernel: Operation(form.new, form.compute, form.scalars, locked=True),
        "adopt": Operation(adopt, locked=True),
        "adopt_remembering": Operation({**adopt, **dict.fromkeys(remembered, "x")}, locked=True),
        "overwrite": Operation({**adopt, **dict.fromkeys(remembered, "x"), **followed}, locked=True),
        "take_over": Operation({"x": "c", **dict.fromkeys(remembered, "c"), **followed}, locked=bool(followed)),
        "pull": Operation({"x": "c"}),
    }
    if form.adds:
        found[f"{kernel}_atomic"] = Operation(form.new, form.compute, form.scalars, form.adds)
    return found
