"""The election of the worker that creates the center; all others must have its model and rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import (
    Action,
    CenterDropped,
    CenterMade,
    CenterSource,
    Requester,
    SendReply,
    Shared,
    refuse,
)
from platoon_base.coordination.roster import Event, Participant, Roster
from platoon_base.dtypes import SHARED
from platoon_base.errors import LayoutMismatchError
from platoon_base.layout import Layout, ParameterSpec
from platoon_base.timeouts import timeout


@dataclass
class _Center:
    layout: Layout
    request: msg.InitCenter  # The creator's request.
    creator: int
    giver: int  # The rank that sent the request.
    made: bool = False
    ready: bool = False
    waiting: dict[int, Requester] = field(default_factory=dict)
    waiting_creator: Requester | None = None

    @property
    def shared(self) -> Shared:
        return Shared(self.layout, self.request.rule, self.request.settings)


class CenterElection:
    """The first worker that asks creates the center; the others wait, then attach.

    If the creator dies or fails, the lowest rank that waits becomes the creator. Each host has its
    own center. That of host 0 is ready when it is created, those of other hosts once they have its
    values, see `filled`. If no worker of host 0 can create one, the lowest host with a center is
    the source.
    """

    def __init__(self, roster: Roster) -> None:
        self.dropped = 0  # The number of released centers.
        # The next center is created from the checkpoint; checkpoints need a center of host 0.
        self.resumes = self.saved = False
        self._roster = roster
        self._centers: dict[int, _Center] = {}  # The key is the host.
        self._source = 0  # All centers start with this host's values.
        self._no_candidate_since: float | None = None

    @property
    def shared(self) -> Shared | None:
        """The parameters and the rule that the workers share, once a center is ready."""
        ready = [host for host, center in self._centers.items() if center.ready]
        return self._centers[min(ready)].shared if ready else None

    def stand(self, request: msg.InitCenter, participant: Participant, requester: Requester) -> list[Action]:
        """Handle a worker with parameters to share: it creates the center, waits or attaches."""
        layout = Layout(tuple(ParameterSpec(*spec) for spec in request.specs), request.moments)
        refusal = _impossible(layout) or self._center_released(participant)
        if refusal is not None:
            return [SendReply(requester, refusal)]
        host = participant.host_index
        center = self._centers.get(host)
        if center is not None and center.creator == participant.rank and not center.made and not center.waiting:
            center = None  # The creator has failed.
            del self._centers[host]
        known = center or next(iter(self._centers.values()), None)
        refusal = None if known is None else _difference(layout, request, known, participant.rank)
        if refusal is not None:
            return [SendReply(requester, refusal)]
        if center is None:
            self._centers[host] = _Center(layout, request, participant.rank, participant.rank)
            return [self._create(requester, host)]
        if center.ready:
            self._roster.move(participant, Event.SHARE)
            return [SendReply(requester, msg.CenterRole(create=False))]
        if center.creator == participant.rank and not center.made:
            return [self._create(requester, host)]
        earlier = center.waiting.pop(participant.rank, None)
        center.waiting[participant.rank] = requester
        return [] if earlier is None else [refuse(earlier, "ProtocolError", "asked again meanwhile")]

    def created(self, request: msg.CenterReady, participant: Participant, requester: Requester) -> list[Action]:
        """Attach those that wait, or choose another creator if this one has failed."""
        host = participant.host_index
        center = self._centers.get(host)
        if center is None or center.made or center.creator != participant.rank:
            return [refuse(requester, "ProtocolError", f"rank {participant.rank} was not asked to create the center")]
        if request.error:
            return [SendReply(requester, msg.Done()), *self._replace_creator(host, center)]
        center.made = True
        if host or self._source:
            center.waiting_creator = requester
            return [CenterMade(host, center.shared)]
        made = [CenterMade(host, center.shared)] if self._roster.several_hosts else []
        return [*self._now_ready(center, requester, msg.Done()), *made]

    def filled(self, host: int) -> list[Action]:
        """Let a host's workers use its center, which has the source's values now."""
        center = self._centers.get(host)
        if center is None or not center.made or center.ready:
            return []
        return self._now_ready(center, center.waiting_creator, msg.CenterRole(create=False))

    @property
    def waits_for_first_host(self) -> frozenset[int]:
        """The ranks on other hosts that wait for the initial values of host 0, which has no center yet."""
        if not self._roster.several_hosts or self._source in self._centers:
            return frozenset()
        waiting = [(each.creator, *each.waiting) for each in self._centers.values() if each.made and not each.ready]
        return frozenset(rank for ranks in waiting for rank in ranks)

    def poll(self, now: float, missing_of: Callable[[int], frozenset[int]]) -> list[Action]:
        """Choose another host as the source if no worker of host 0 can create a center any more.

        If the job resumes or saves checkpoints, which only host 0 reads and writes, refuse the
        other hosts' workers. ``missing_of(rank)`` returns the ranks that a rank's collective call
        waits for.
        """
        waiting = self.waits_for_first_host
        there = [each for each in self._roster.values() if each.host_index == 0 and not each.phase.gone]
        if not waiting or not all(missing_of(each.rank) & waiting for each in there):
            self._no_candidate_since = None
            return []
        if self._no_candidate_since is None:
            self._no_candidate_since = now
        if now < self._no_candidate_since + timeout("restart"):
            return []
        ranks = ", ".join(str(each.rank) for each in there)
        why = f"ranks {ranks} wait for the others in another call" if there else "all of them have ended"
        text = f"no worker of host 0 shares parameters ({why})"
        if not self.resumes and not self.saved:
            self._source = min(host for host, center in self._centers.items() if center.made)
            return [CenterSource(self._source, text)]
        text = (
            f"{text}. The launcher of host 0 reads and writes checkpoints, and needs a center "
            "there: let a worker of host 0 share the parameters too, start a host whose workers share "
            "them as host 0, or run without checkpoints"
        )
        return self._refuse_all(text + self._roster.story.tail([each.rank for each in there], [0]))

    def _refuse_all(self, text: str) -> list[Action]:
        actions: list[Action] = []
        for center in self._centers.values():
            if center.made and not center.ready:
                requesters = [center.waiting_creator, *center.waiting.values()]
                actions += [
                    refuse(requester, "ConfigurationError", text) for requester in requesters if requester is not None
                ]
                # The creator reports a failure next.
                center.made, center.waiting_creator = False, None
                center.waiting.clear()
        return actions

    def _now_ready(self, center: _Center, creator: Requester | None, answer: msg.Reply) -> list[Action]:
        """Attach those that wait to a center, and its creator, if its values were replaced."""
        center.ready, self.resumes = True, False
        actions: list[Action] = []
        if creator is not None:
            self._roster.move(self._roster[center.creator], Event.SHARE)
            actions.append(SendReply(creator, answer))
        for rank, waiting in center.waiting.items():
            self._roster.move(self._roster[rank], Event.SHARE)
            actions.append(SendReply(waiting, msg.CenterRole(create=False)))
        center.waiting.clear()
        return actions

    def mark_lost(self, host: int) -> list[Action]:
        """Drop the center of a lost host: if it returns, its workers create another."""
        self._centers.pop(host, None)
        if not self._source or host != self._source:
            return []
        ready = [each for each, center in self._centers.items() if center.ready]
        made = [each for each, center in self._centers.items() if center.made]
        self._source = min(ready or made, default=0)
        return [CenterSource(self._source, f"host {host}, which provided the values, is lost")]

    def depart(self, rank: int) -> list[Action]:
        for host, center in list(self._centers.items()):
            if not center.ready:
                center.waiting.pop(rank, None)
                if center.creator == rank and center.made:
                    center.waiting_creator = None  # The center stays.
                elif center.creator == rank:
                    return self._replace_creator(host, center)
        return []

    def drop(self) -> list[Action]:
        """Drop the ready centers; one that is being created belongs to others, and stays."""
        shared = self.shared
        if shared is None:
            return []
        dropped: list[Action] = [CenterDropped(shared)]
        self._centers = {host: center for host, center in self._centers.items() if not center.ready}
        self._source = 0
        self.dropped += 1
        for participant in self._roster.values():
            if participant.phase.shares:
                self._roster.move(participant, Event.RELEASE)
        return dropped

    def _center_released(self, participant: Participant) -> msg.Failure | None:
        if participant.for_center in (None, self.dropped):
            return None
        text = "the others have released the parameters that this worker was restarted for"
        return msg.Failure(kind="ConfigurationError", message=f"{text}: there is nothing left for it to do")

    def _replace_creator(self, host: int, center: _Center) -> list[Action]:
        if not center.waiting:
            del self._centers[host]
            return []
        center.creator, requester = min(center.waiting.items())
        del center.waiting[center.creator]
        return [self._create(requester, host)]

    def _create(self, requester: Requester, host: int) -> SendReply:
        # Only host 0 reads the checkpoint; the other hosts get its values.
        return SendReply(requester, msg.CenterRole(create=True, resume=self.resumes and host == 0))


def _impossible(layout: Layout) -> msg.Failure | None:
    impossible = next((spec for spec in layout.specs if not _possible(spec)), None)
    if impossible is None and layout.specs:
        if 0 <= layout.moments < len(layout.specs):
            return None
        text = f"got {len(layout.specs)} arrays, of which {layout.moments} are moments"
        return msg.Failure(kind="ConfigurationError", message=f"{text}: share the parameters before their moments")
    text = "got no parameters" if impossible is None else f"got {impossible} as a parameter"
    return msg.Failure(kind="ConfigurationError", message=f"{text}: share arrays of floating-point numbers")


def _possible(spec: ParameterSpec) -> bool:
    return spec.dtype in SHARED and len(spec.shape) <= msg.MAX_DIMENSIONS and all(n >= 0 for n in spec.shape)


def _difference(layout: Layout, request: msg.InitCenter, center: _Center, rank: int) -> msg.Failure | None:
    """Return the difference between the center and the one that a worker wants, or None."""
    try:
        layout.require_same(center.layout)
    except LayoutMismatchError as exc:
        return msg.Failure(kind="LayoutMismatchError", message=str(exc))
    if layout.moments != center.layout.moments:
        text = f"got {layout.moments} moments among the arrays, and the job's model has {center.layout.moments}"
        return msg.Failure(kind="LayoutMismatchError", message=f"{text}; use the same optimizer on every worker")
    if request.rule != center.request.rule:
        text = f"got rule {request.rule}, and the job uses {center.request.rule}: a center has one rule"
        return msg.Failure(kind="ConfigurationError", message=f"{text}; use the same rule on every worker")
    mine, others = request.arguments, center.request.arguments
    apart = [name for name in {**others, **mine} if mine.get(name) != others.get(name)]
    if apart:
        own, theirs = (", ".join(f"{name}={each.get(name)}" for name in apart) for each in (mine, others))
        text = f"got {request.rule} with {own} on rank {rank}, and with {theirs} on rank {center.giver}: each worker "
        text += "would update the common parameters differently; pass the same arguments on every worker, also in "
        return msg.Failure(kind="ConfigurationError", message=f"{text}PLATOON_RULE")
    if request.location != center.request.location:
        text = f"got parameters on the {request.location}, and the job's are on the {center.request.location}"
        text = f"{text}: a center is in one kind of memory; launch with --center host if devices differ"
        return msg.Failure(kind="ConfigurationError", message=text)
    return None
