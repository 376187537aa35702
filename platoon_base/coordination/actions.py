"""The actions that the coordinator returns, for its caller to carry out."""

from __future__ import annotations

from typing import NamedTuple, Union

from platoon_base.coordination import messages as msg
from platoon_base.layout import Layout

__all__ = [
    "Action",
    "AnswerUser",
    "CenterDropped",
    "CenterMade",
    "CenterSource",
    "Requester",
    "RoundReached",
    "SendReply",
    "Shared",
    "StopJob",
    "refuse",
]


class Requester(NamedTuple):
    """The connection and the request that an answer belongs to."""

    peer: bytes
    request_id: bytes


class SendReply(NamedTuple):
    """Send this to a worker."""

    to: Requester
    reply: msg.Reply


class StopJob(NamedTuple):
    """Raise the stop flag for every worker."""

    reason: str


class AnswerUser(NamedTuple):
    """Let the user's controller answer, and reply to the requester."""

    to: Requester
    rank: int
    req: str
    info: object


class Shared(NamedTuple):
    """The layout of the parameters that the workers share, and the rule by its name and with its arguments."""

    layout: Layout
    rule: str
    settings: str


class CenterDropped(NamedTuple):
    """All workers released the center: nobody may open it any more once they are told."""

    shared: Shared


class CenterMade(NamedTuple):
    """A worker has made the center of its host, which has yet to get the source's values unless it is the source."""

    host: int
    shared: Shared


class CenterSource(NamedTuple):
    """The centers of all hosts begin with the values of this host's, and ``why`` not with those of host 0's."""

    host: int
    why: str


class RoundReached(NamedTuple):
    """The workers of several hosts have met in a round: their hosts are to exchange what they have contributed.

    ``hosts`` has the number of workers of each host.
    """

    number: int
    hosts: dict[int, int]


Action = Union[SendReply, StopJob, AnswerUser, CenterDropped, CenterMade, CenterSource, RoundReached]


def refuse(requester: Requester, kind: str, message: str) -> SendReply:
    """Answer a request with a failure; ``kind`` names an error class of this package."""
    return SendReply(requester, msg.Failure(kind=kind, message=message))
