"""Operations on one element of a center on devices, generated from the form of its rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from platoon_base.rules.center import Rule, average_of, form_of, local_sources, momenta

__all__ = ["Operation", "operations"]


class Operation(NamedTuple):
    """Element-wise operation with a kernel of its own; all values have the type ``T``."""

    # An element is unchanged, locally and in the center, if its center or a center state would not
    # be finite. ``times(a, b)`` in an expression is a product without a fused multiply-add.
    new: Mapping[str, str]  # Expression of each value that changes.
    compute: str = ""  # Declarations of common subexpressions.
    scalars: tuple[str, ...] = ()
    adds: str = ""
    locked: bool = False


def operations(rule: Rule) -> dict[str, Operation]:
    """Return the operations on the center of a rule with a form, by the names of their kernels."""
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
    # ``overwrite`` and ``take_over`` reset the local states, ``pull`` does not. With an average of
    # the center, ``take_over_average`` and ``pull_average`` copy it to x.
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
