"""The actions that the coordinator returns, for its caller to carry out."""

from __future__ import annotations

from typing import NamedTuple, Union

from platoon_base.coordination import messages as msg
from platoon_base.layout import Layout


class Requester(NamedTuple):
    peer: bytes
    request_id: bytes


class SendReply(NamedTuple):
    to: Requester
    reply: msg.Reply


class StopJob(NamedTuple):
    reason: str


class AnswerUser(NamedTuple):
    """Call the user's controller, and send its answer to the requester."""

    to: Requester
    rank: int
    req: str
    info: object


class Shared(NamedTuple):
    """The layout of the shared parameters, and the rule by its name and with its arguments."""

    layout: Layout
    rule: str
    settings: str


class CenterDropped(NamedTuple):
    """All workers released the center: it must be closed before they are answered."""

    shared: Shared


class CenterMade(NamedTuple):
    """A host's center was created; unless it is the source, it still needs the source's values."""

    host: int
    shared: Shared


class CenterSource(NamedTuple):
    """All centers start with this host's values; ``why`` is the reason against host 0."""

    host: int
    why: str


class RoundReached(NamedTuple):
    """All hosts exchange their contributions; ``hosts`` has the number of workers by host."""

    number: int
    hosts: dict[int, int]


CenterEvent = Union[CenterDropped, CenterMade, CenterSource, RoundReached]
Action = Union[SendReply, StopJob, AnswerUser, CenterEvent]


def refuse(requester: Requester, kind: str, message: str) -> SendReply:
    """Answer a request with a failure; ``kind`` names an error class of this package."""
    return SendReply(requester, msg.Failure(kind=kind, message=message))
