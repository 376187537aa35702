"""The kinds of collective calls: the terms of their waits, and their answers."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

from platoon_base.coordination import messages as msg
from platoon_base.metrics import VECTOR_ITEM_BYTES, add_pairs, add_vectors

__all__ = ["Terms", "drops_center", "invalid", "mismatch", "reply_to", "terms_of"]


class Terms(NamedTuple):
    skips_late: bool = False  # A late joiner that is no participant yet gets an answer immediately.
    launched_only: bool = False  # The call does not wait for late joiners.
    binds: bool = False  # A lost participant cannot be restarted alone from now on.
    combines: bool = False  # The workers exchange values.
    # Once all others wait in other calls, the call with the greatest number completes without them;
    # 0: never.
    leaves_out: int = 0


@functools.singledispatch
def terms_of(call: msg.CollectiveCall) -> Terms:
    return Terms()


@terms_of.register
def _(call: msg.Sum) -> Terms:
    return Terms(skips_late=call.skips_late, combines=bool(call.pairs or call.vector))


@terms_of.register
def _(call: msg.Gather) -> Terms:
    return Terms(combines=True)


@terms_of.register
def _(call: msg.FormGroup) -> Terms:
    return Terms(launched_only=True, binds=True, combines=True)


@terms_of.register
def _(call: msg.Barrier) -> Terms:
    return Terms(skips_late=True)


@terms_of.register
def _(call: msg.Meet) -> Terms:
    return Terms(binds=call.binds)


@terms_of.register
def _(call: msg.Round) -> Terms:
    return Terms(leaves_out=2)


@terms_of.register
def _(call: msg.RoundsMade) -> Terms:
    return Terms(leaves_out=1)


@terms_of.register
def _(call: msg.ReleaseCenter) -> Terms:
    return Terms(skips_late=not call.shares)


def drops_center(calls: Mapping[int, msg.CollectiveCall]) -> bool:
    """Return whether the controller must drop the center after this call."""
    return any(isinstance(call, msg.ReleaseCenter) and call.stage == "drop" and call.shares for call in calls.values())


def invalid(call: msg.CollectiveCall) -> str:
    """Return the fault of a call that no correct worker makes; empty if there is none."""
    if isinstance(call, msg.Sum) and len(call.vector) % VECTOR_ITEM_BYTES:
        return f"got a vector of {len(call.vector)} bytes, which is not float64; install one version everywhere"
    if math.isnan(call.timeout_s):
        return "got timeout_s=nan, a wait that would never end; pass seconds"
    return ""


def reply_to(calls: Mapping[int, msg.CollectiveCall], lost: list[int], stop: str, rounds: int) -> msg.Reply:
    """Return the answer for all participants; ``calls`` by rank, in rank order, all of one kind."""
    ranks, kind = list(calls), next(iter(calls.values()))
    if isinstance(kind, msg.Sum):
        sums = _sums(calls).values()
        pairs, vector = add_pairs(call.pairs for call in sums), add_vectors(call.vector for call in sums)
        return msg.Sums(pairs=pairs, vector=vector, ranks=ranks, lost=lost, stop=stop)
    if isinstance(kind, (msg.Gather, msg.FormGroup)):
        values = [call.value for call in calls.values() if isinstance(call, msg.Gather)]
        values += [call.note for call in calls.values() if isinstance(call, msg.FormGroup)]
        return msg.Gathered(values=values, ranks=ranks, lost=lost, stop=stop)
    if isinstance(kind, msg.Round):
        return msg.RoundReached(number=rounds, ranks=ranks, lost=lost, stop=stop)
    if isinstance(kind, msg.RoundsMade):
        made = {rank: call.number for rank, call in calls.items() if isinstance(call, msg.RoundsMade)}
        latest = max(made.values())
        behind = [rank for rank in ranks if made[rank] < latest]
        return msg.RoundsCompared(latest=latest, behind=behind, ranks=ranks, lost=lost, stop=stop)
    return msg.Met(ranks=ranks, lost=lost, stop=stop)


def _sums(calls: Mapping[int, msg.CollectiveCall]) -> dict[int, msg.Sum]:
    return {rank: call for rank, call in calls.items() if isinstance(call, msg.Sum)}


def mismatch(calls: Mapping[int, msg.CollectiveCall]) -> str:
    """Return how many values each worker gave, if the shapes differ; empty if they are equal."""
    sums = _sums(calls)
    givers: dict[tuple[object, ...], list[int]] = {}
    for rank, call in sums.items():
        givers.setdefault((len(call.vector), *call.shapes), []).append(rank)
    if len(givers) <= 1:
        return ""
    given = "; ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}: {_shapes_text(sums[ranks[0]])}"
        for ranks in givers.values()
    )
    name = next(iter(sums.values())).name
    return (
        f"got arrays of different shapes to add in {name!r}: {given}. Every worker must pass the same list of shapes; "
        "a worker that has nothing to add passes zeros"
    )


def _shapes_text(call: msg.Sum) -> str:
    shapes = call.shapes
    listed = ", ".join(map(str, shapes[:8])) + (", ..." if len(shapes) > 8 else "")
    values = sum(math.prod(shape) for shape in shapes)
    return f"{values} values in {len(shapes)} arrays{f' ({listed})' if shapes else ''}"
