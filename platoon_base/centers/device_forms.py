"""The operations on one element of a center on devices, as C expressions made from the form of its rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from platoon_base.rules.center import Rule, average_of, form_of, local_sources, momenta

__all__ = ["Operation", "operations"]


class Operation(NamedTuple):
    """An element-wise operation, for which one kernel is made.

    All values have the type ``T``, float or double. An element is left unchanged, locally and in the center, if its
    center or a center state would not be finite.

    Attributes
    ----------
    new : mapping of str to str
        The expression of each value that changes, from the old values and the variables of ``compute``.
    compute : str
        Declares common subexpressions. ``times(a, b)`` is a product without a fused multiply-add.
    scalars : tuple of str
        Names of the rule's ``kernel_args()``.
    adds : str
        See `Form`.
    locked : bool
    """

    new: Mapping[str, str]
    compute: str = ""
    scalars: tuple[str, ...] = ()
    adds: str = ""
    locked: bool = False


def operations(rule: Rule) -> dict[str, Operation]:
    """Return the operations on the center of a rule that has a form, by the names of their kernels.

    These are the rule itself, its ``_atomic`` form without locks if it has one, both kinds of `Adopt`, ``overwrite``
    (c := x) and ``take_over`` (x := c), which start the local states, and ``pull`` (x := c). With an average a of the
    center ``take_over_average`` and ``pull_average`` give x its values.
    """
    form: Any = form_of(rule)
    lines, new = form.in_c("times")
    compute = " ".join(f"T {name} = {value};" for name, value in lines)
    sources = dict(zip(form.local, local_sources(rule)))
    followed = {name: form.center[source] for name, source in sources.items() if source is not None}
    remembered = [name for name, source in sources.items() if source is None]
    average = average_of(rule)
    averages = [] if average is None else [form.center[average]]
    adopt = {"c": "x", **{form.center[i]: f"x == c ? {form.center[i]} : 0" for i in momenta(rule)}}
    copies = dict.fromkeys([*remembered, *averages], "x")
    found = {
        form.name: Operation(new, compute, form.scalars, locked=True),
        "adopt": Operation(adopt, locked=True),
        "adopt_remembering": Operation({**adopt, **copies}, locked=True),
        "overwrite": Operation({**adopt, **copies, **followed}, locked=True),
        "take_over": Operation({"x": "c", **dict.fromkeys(remembered, "c"), **followed}, locked=bool(followed)),
        "pull": Operation({"x": "c"}),
    }
    for a in averages:
        found["take_over_average"] = Operation({"x": a, **dict.fromkeys(remembered, a), **followed}, locked=True)
        found["pull_average"] = Operation({"x": a})
    if form.adds:
        added = next(name for name, _ in reversed(lines) if name.rpartition("_")[0] == form.adds)
        found[f"{form.name}_atomic"] = Operation(new, compute, form.scalars, added)
    return found
