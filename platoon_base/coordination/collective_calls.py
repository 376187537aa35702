"""The collective calls one by one: the terms on which workers wait in them, and the answers that they get."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

from platoon_base.coordination import messages as msg
from platoon_base.metrics import VECTOR_ITEM_BYTES, add_pairs, add_vectors

__all__ = ["Terms", "drops_center", "invalid", "mismatch", "reply_to", "terms_of"]


class Terms(NamedTuple):
    """The terms of a collective call.

    Attributes
    ----------
    skips_late : bool
        A late joiner that has not met the others yet gets an answer at once.
    launched_only : bool
        Late joiners are not waited for.
    binds : bool
        The workers that have come need each other from now on: one that is lost cannot come again alone.
    combines : bool
        The workers exchange values; otherwise they merely wait for each other.
    leaves_out : int
        Once all others wait in other calls, those that have come go on without them, first those with the greatest
        number; 0 if they never do.
    """

    skips_late: bool = False
    launched_only: bool = False
    binds: bool = False
    combines: bool = False
    leaves_out: int = 0


@functools.singledispatch
def terms_of(call: msg.CollectiveCall) -> Terms:
    """Return the terms of a call."""
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
    """Return whether the controller has to forget the center, now that all have come."""
    return any(isinstance(call, msg.ReleaseCenter) and call.stage == "drop" and call.shares for call in calls.values())


def invalid(call: msg.CollectiveCall) -> str:
    """Tell the fault of a call that no correct worker makes; empty if there is none."""
    if isinstance(call, msg.Sum) and len(call.vector) % VECTOR_ITEM_BYTES:
        return f"got a vector of {len(call.vector)} bytes, which are no float64; install one version everywhere"
    if math.isnan(call.timeout_s):
        return "got timeout_s=nan: a wait that would never end; give seconds"
    return ""


def reply_to(calls: Mapping[int, msg.CollectiveCall], lost: list[int], stop: str, rounds: int) -> msg.Reply:
    """Make the answer for all workers that have come.

    Parameters
    ----------
    calls : mapping of int to CollectiveCall
        By rank, in the order of the ranks; all of one kind.
    lost : list of int
    stop : str
        The reason why the job stops; empty while it does not.
    rounds : int
        Number of the latest round.
    """
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
    """Tell how many values each worker gave, if not all gave arrays of the same shapes; empty if they did."""
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
