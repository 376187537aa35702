"""The election of the worker that creates the center, and the agreement of the others with its model and rule."""

from __future__ import annotations

from dataclasses import dataclass, field

from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import Action, Asker, CenterDropped, SendReply, Shared, refuse
from platoon_base.coordination.roster import Participant, Phase, Roster
from platoon_base.errors import LayoutMismatchError
from platoon_base.layout import Layout, ParameterSpec

__all__ = ["CenterElection"]

_DTYPES = ("float16", "float32", "float64", "longdouble", "float128")


@dataclass
class _Center:
    layout: Layout
    request: msg.InitCenter  # of the creator
    creator: int
    ready: bool = False
    waiting: dict[int, Asker] = field(default_factory=dict)

    @property
    def shared(self) -> Shared:
        return Shared(self.layout, self.request.rule, self.request.settings)


class CenterElection:
    """The first worker that asks creates the center; the others wait until it is ready, and attach to it.

    If the creator dies or fails, the lowest rank that waits becomes the creator.

    Parameters
    ----------
    roster : Roster
        Participants are in the phase TRAINING while they share the center.

    Attributes
    ----------
    dropped : int
        Number of centers that the workers have released together.
    resumes : bool
        Whether the next center is created from the job's checkpoint.
    """

    def __init__(self, roster: Roster) -> None:
        self.dropped = 0
        self.resumes = False
        self._roster = roster
        self._center: _Center | None = None

    @property
    def shared(self) -> Shared | None:
        """The parameters and the rule that the workers share, once the center is ready."""
        center = self._center
        return center.shared if center is not None and center.ready else None

    def stand(self, request: msg.InitCenter, participant: Participant, asker: Asker) -> list[Action]:
        """Let a worker that has parameters to share create the center, wait for it, or attach to it."""
        layout = Layout(tuple(ParameterSpec(*spec) for spec in request.specs))
        refusal = _impossible(layout) or self._come_in_vain(participant)
        if refusal is not None:
            return [SendReply(asker, refusal)]
        center = self._center
        if center is None or (center.creator == participant.rank and not center.ready and not center.waiting):
            # Also after a failure to create it.
            self._center = _Center(layout, request, creator=participant.rank)
            return [self._create(asker)]
        refusal = _difference(layout, request, center)
        if refusal is not None:
            return [SendReply(asker, refusal)]
        if center.ready:
            participant.phase = Phase.TRAINING
            return [SendReply(asker, msg.CenterRole(create=False))]
        if center.creator == participant.rank:
            return [self._create(asker)]
        earlier = center.waiting.pop(participant.rank, None)
        center.waiting[participant.rank] = asker
        return [] if earlier is None else [refuse(earlier, "ProtocolError", "asked again meanwhile")]

    def created(self, request: msg.CenterReady, participant: Participant, asker: Asker) -> list[Action]:
        """Let those that wait attach to the center; or let one of them create it, if the creator has failed."""
        center = self._center
        if center is None or center.ready or center.creator != participant.rank:
            return [refuse(asker, "ProtocolError", f"rank {participant.rank} was not asked to create the center")]
        if request.error:
            return [SendReply(asker, msg.Done()), *self._replace_creator(center)]
        center.ready, self.resumes = True, False
        participant.phase = Phase.TRAINING
        actions: list[Action] = [SendReply(asker, msg.Done())]
        for rank, waiting in center.waiting.items():
            self._roster[rank].phase = Phase.TRAINING
            actions.append(SendReply(waiting, msg.CenterRole(create=False)))
        center.waiting.clear()
        return actions

    def depart(self, rank: int) -> list[Action]:
        """Go on without a rank that is gone."""
        center = self._center
        if center is None or center.ready:
            return []
        center.waiting.pop(rank, None)
        return self._replace_creator(center) if center.creator == rank else []

    def drop(self) -> list[Action]:
        """Let the next one that shares parameters make a center; one that is being made now is another's, and stays."""
        if self.shared is None:
            return []
        dropped: list[Action] = [CenterDropped(self.shared)]
        self._center = None
        self.dropped += 1
        for participant in self._roster.values():
            if participant.phase is Phase.TRAINING:
                participant.phase = Phase.JOINED
        return dropped

    def _come_in_vain(self, participant: Participant) -> msg.Failure | None:
        if participant.for_center in (None, self.dropped):
            return None
        text = "the others have released the parameters that this worker was started again for"
        return msg.Failure(kind="ConfigurationError", message=f"{text}: there is nothing left for it to do")

    def _replace_creator(self, center: _Center) -> list[Action]:
        if not center.waiting:
            self._center = None
            return []
        center.creator, asker = min(center.waiting.items())
        del center.waiting[center.creator]
        return [self._create(asker)]

    def _create(self, asker: Asker) -> SendReply:
        return SendReply(asker, msg.CenterRole(create=True, resume=self.resumes))


def _impossible(layout: Layout) -> msg.Failure | None:
    impossible = next((spec for spec in layout.specs if not _possible(spec)), None)
    if impossible is None and layout.specs:
        return None
    text = "got no parameters" if impossible is None else f"got {impossible} as a parameter"
    return msg.Failure(kind="ConfigurationError", message=f"{text}: share arrays of floating-point numbers")


def _possible(spec: ParameterSpec) -> bool:
    return spec.dtype in _DTYPES and len(spec.shape) <= msg.MAX_DIMENSIONS and all(n >= 0 for n in spec.shape)


def _difference(layout: Layout, request: msg.InitCenter, center: _Center) -> msg.Failure | None:
    """Tell the difference between the center and the one that a worker wants; None if it is the same."""
    try:
        layout.require_same(center.layout)
    except LayoutMismatchError as exc:
        return msg.Failure(kind="LayoutMismatchError", message=str(exc))
    if request.rule != center.request.rule:
        text = f"got rule {request.rule}, the job's is {center.request.rule}: a center can follow one rule only"
        return msg.Failure(kind="ConfigurationError", message=f"{text}; give every worker the same rule")
    if request.location != center.request.location:
        text = f"got parameters on the {request.location}, the job's are on the {center.request.location}"
        text = f"{text}: a center has one place; launch with --center host if devices differ"
        return msg.Failure(kind="ConfigurationError", message=text)
    return None
