"""The rendezvous: waits in collective calls end by completion, deadline or deadlock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union

from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import Requester, SendReply, refuse
from platoon_base.coordination.roster import Participant, Roster
from platoon_base.errors import LEAVE_TOGETHER
from platoon_base.metrics import VECTOR_ITEM_BYTES, add_pairs, add_vectors


class Terms(NamedTuple):
    skips_late: bool = False  # A late joiner that is no participant yet gets an answer immediately.
    launched_only: bool = False  # The call does not wait for late joiners.
    binds: bool = False  # A lost participant cannot be restarted alone from now on.
    combines: bool = False  # The workers exchange values.
    # Once all others wait in other calls, the call with the greatest number completes without them;
    # 0: never.
    leaves_out: int = 0


_TERMS: dict[type, Callable[[Any], Terms]] = {
    msg.Sum: lambda call: Terms(skips_late=call.skips_late, combines=bool(call.pairs or call.vector)),
    msg.Gather: lambda call: Terms(combines=True),
    msg.FormGroup: lambda call: Terms(launched_only=True, binds=True, combines=True),
    msg.Barrier: lambda call: Terms(skips_late=True),
    msg.Meet: lambda call: Terms(binds=call.binds),
    msg.Round: lambda call: Terms(leaves_out=2),
    msg.RoundsMade: lambda call: Terms(leaves_out=1),
    msg.ReleaseCenter: lambda call: Terms(skips_late=not call.shares),
}


def terms_of(call: msg.CollectiveCall) -> Terms:
    return _TERMS.get(type(call), lambda call: Terms())(call)


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


_TITLE_CHARACTERS = 60


class Complete(NamedTuple):
    """All have made a call and get answers; ``requesters`` by arrival, ``calls`` by rank."""

    requesters: dict[int, Requester]
    calls: dict[int, msg.CollectiveCall]
    binds: bool


Outcome = Union[SendReply, Complete]


class _Name(NamedTuple):
    """Calls of one kind and title are the same call."""

    kind: type[msg.CollectiveCall]
    title: str


class _Wait(NamedTuple):
    requester: Requester
    call: msg.CollectiveCall
    terms: Terms
    deadline: float


class Rendezvous:
    """The waits of all workers in collective calls; a worker waits in one at a time.

    The roster determines which ranks a call waits for; a completed call makes late joiners
    participants.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._story = roster.story
        self._waits: dict[_Name, dict[int, _Wait]] = {}
        self._earliest = math.inf  # No deadline is earlier.

    def enter(
        self, call: msg.CollectiveCall, terms: Terms, participant: Participant, requester: Requester, now: float
    ) -> list[Outcome]:
        if terms.skips_late and not participant.phase.awaited:
            # The others may have made this call long ago, and do not wait for this worker either.
            return [Complete({participant.rank: requester}, {participant.rank: call}, binds=False)]
        outcomes = self.withdraw(participant.rank)
        name = _Name(type(call), call.title)
        deadline = now + call.timeout_s
        self._earliest = min(self._earliest, deadline)
        self._waits.setdefault(name, {})[participant.rank] = _Wait(requester, call, terms, deadline)
        return outcomes + (self._complete(name) or self._refuse_cross_wait())

    def withdraw(self, rank: int) -> list[Outcome]:
        """End the wait of a worker that has cancelled it, or sent another request."""
        outcomes: list[Outcome] = []
        for name, waits in list(self._waits.items()):
            earlier = waits.pop(rank, None)
            if earlier is not None:
                outcomes.append(refuse(earlier.requester, "ProtocolError", "asked for something else meanwhile"))
                if not waits:
                    del self._waits[name]
        return outcomes

    def depart(self, rank: int) -> list[Outcome]:
        """Remove a rank that is gone: calls may be complete now."""
        outcomes: list[Outcome] = []
        for name in list(self._waits):
            self._waits[name].pop(rank, None)
            outcomes += self._complete(name)
        return outcomes + self._refuse_cross_wait()

    def tick(self, now: float, moved: Callable[[int], float] = lambda rank: -math.inf) -> list[Outcome]:
        """Answer the waits whose deadline has passed.

        They fail if a missing rank has made no progress for as long as they allow. Otherwise the
        workers are asked to repeat the call: a straggler is not absent. ``moved(rank)`` is the time
        of its last progress.
        """
        outcomes: list[Outcome] = []
        if now < self._earliest:
            return outcomes
        for name, waits in list(self._waits.items()):
            late = {rank: wait for rank, wait in waits.items() if wait.deadline <= now}
            since = {rank: moved(rank) for rank in self._missing(waits)} if late else {}
            failures: dict[float, msg.Failure] = {}  # One for each patience.
            for rank, wait in late.items():
                del waits[rank]
                patience_s = wait.call.patience_s or wait.call.timeout_s
                left_s = min(since.values(), default=-math.inf) + patience_s - now
                if 0 < left_s < math.inf:
                    outcomes.append(SendReply(wait.requester, msg.AskAgain(seconds=left_s)))
                else:
                    if patience_s not in failures:
                        failures[patience_s] = self._timed_out(name, since, now, patience_s)
                    self._story.add("rank", [rank], _waits_in(name), "timed out")
                    outcomes.append(SendReply(wait.requester, failures[patience_s]))
            if not waits:
                del self._waits[name]
        deadlines = (wait.deadline for waits in self._waits.values() for wait in waits.values())
        self._earliest = min(deadlines, default=math.inf)
        return outcomes

    @property
    def next_deadline(self) -> float | None:
        """A time before which `tick` has nothing to do; None if no worker waits."""
        return self._earliest if self._waits else None

    def missing_of(self, rank: int) -> frozenset[int]:
        """Return the ranks that a rank's call waits for; empty if it is in none."""
        waits = next((waits for waits in self._waits.values() if rank in waits), None)
        return frozenset() if waits is None else self._missing(waits)

    def _missing(self, waits: dict[int, _Wait]) -> frozenset[int]:
        missing = self._roster.awaited.difference(waits)
        launched_only = any(wait.terms.launched_only for wait in waits.values())
        return missing - self._roster.late if launched_only else missing

    def _complete(self, name: _Name) -> list[Outcome]:
        """Remove a call if all have made it, or no worker is left in it."""
        waits = self._waits[name]
        # The count is enough for all but the last caller.
        if waits and len(waits) < len(self._roster.awaited) - len(self._roster.late):
            return []
        if waits and self._missing(waits):
            return []
        return self._take_out(name)

    def _take_out(self, name: _Name) -> list[Outcome]:
        waits = self._waits.pop(name)
        if not waits:
            return []
        # This comes first: the next call may have to wait for a late joiner from now on.
        self._roster.mark_joined(waits)
        requesters = {rank: wait.requester for rank, wait in waits.items()}
        calls = {rank: waits[rank].call for rank in sorted(waits)}
        return [Complete(requesters, calls, binds=any(wait.terms.binds for wait in waits.values()))]

    def _refuse_cross_wait(self) -> list[Outcome]:
        """End all waits if all workers wait in different calls: a deadlock."""
        awaited = self._roster.awaited
        if sum(map(len, self._waits.values())) < len(awaited):
            return []
        names = {rank: name for name, waits in self._waits.items() for rank in waits}
        if not awaited or not awaited <= set(names):
            return []
        leaves_out = {names[rank]: self._waits[names[rank]][rank].terms.leaves_out for rank in awaited}
        first = max(leaves_out.values())
        if first:  # Some workers have more rounds to make than those that wait elsewhere.
            unequal = [name for name, number in leaves_out.items() if number == first]
            return [outcome for name in unequal for outcome in self._take_out(name)]
        late = awaited & self._roster.late
        if late and any(self._roster[rank].launched for rank in names):
            # A late joiner is in another part of the script: it waits until the others get there.
            self._roster.mark_absent(late)
            return [outcome for name in list(self._waits) for outcome in self._complete(name)]
        everyone = {each.rank: each.host_index for each in self._roster.values()}
        story = self._story.tail(everyone, set(everyone.values()))
        failure = msg.Failure(kind="ProtocolError", message=_cross_wait_text(names) + story)
        for name, waits in self._waits.items():
            self._story.add("rank", sorted(waits), _waits_in(name), "deadlock")
        refused = [SendReply(wait.requester, failure) for waits in self._waits.values() for wait in waits.values()]
        self._waits.clear()
        return [*refused]

    def _timed_out(self, name: _Name, since: dict[int, float], now: float, patience_s: float) -> msg.Failure:
        """Return the failure: missing ranks without progress, for how long, and their story."""
        still = [rank for rank, at in sorted(since.items()) if at + patience_s <= now]
        phases = {rank: self._roster[rank].phase.label for rank in still}
        seconds = {rank: f", no progress for {now - since[rank]:.0f} s" for rank in still if since[rank] > -math.inf}
        who = ", ".join(f"rank {rank} ({phases[rank]}{seconds.get(rank, '')})" for rank in still)
        text = (
            f"waited in {name.title!r} for {who}: every worker must make this call. Read the logs "
            "of those ranks, or pass a longer timeout_s (PLATOON_TIMEOUT_S sets it for all waits)"
        )
        text += self._story.tail(still, {self._roster[rank].host_index for rank in still})
        return msg.Failure(kind="CollectiveTimeoutError", message=text)


def _waits_in(name: _Name) -> str:
    return f"waits in {name.title[:_TITLE_CHARACTERS]!r}"


def _cross_wait_text(names: dict[int, _Name]) -> str:
    ambiguous = len({name.title for name in names.values()}) < len(set(names.values()))
    where = ", ".join(
        f"rank {rank} in {names[rank].title!r}{f' ({names[rank].kind.__name__})' if ambiguous else ''}"
        for rank in sorted(names)
    )
    return (
        f"all workers wait, but in different calls: {where}. They must make the same calls in the "
        f"same order. {LEAVE_TOGETHER}. If it ends by should_stop, which may become true on one worker "
        "earlier than on another, use agree_to_stop(). If an exception has ended the loop of one of them, "
        "its log has it"
    )
