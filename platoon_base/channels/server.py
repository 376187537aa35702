"""The controller's side of the control messages: decode, let the coordinator decide, carry its actions out.

The controller and the in-process channel share it, so that both treat every message alike. It survives any bytes: it
answers those that it cannot decode with a failure, and logs them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from platoon_base.channels.base import Received
from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import (
    Action,
    AnswerUser,
    CenterDropped,
    CenterMade,
    CenterSource,
    Requester,
    RoundReached,
    SendReply,
    Shared,
    StopJob,
)
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.encoding import decode_request, encode
from platoon_base.errors import PlatoonError, ProtocolError
from platoon_base.shm.job_state import JobState

__all__ = ["ControlServer", "UserHandler"]

log = logging.getLogger(__name__)

UserHandler = Callable[[str, int, Any], Any]


class ControlServer:
    """Hands requests to the coordinator, and carries out the actions that it returns.

    Parameters
    ----------
    coordinator : Coordinator
    job_state : JobState
    send : callable
        ``send(peer, request_id, data)`` delivers an answer.
    handler : callable, optional
        ``handler(req, rank, info)`` answers the requests that workers send by `Worker.send_req`.
    on_drop : callable, optional
        Called with the parameters and the rule that the workers shared, before they are told that all let go of them.
    on_report : callable, optional
        Called with the values that a worker reports and its rank, while that worker waits.
    answer_observer : callable, optional
        Answers those who take no part in the job.
    on_hosts : callable, optional
        Called with what the hosts of the job are to do.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        job_state: JobState,
        send: Callable[[bytes, bytes, bytes], None],
        handler: UserHandler | None = None,
        on_drop: Callable[[Shared], None] = lambda shared: None,
        on_report: Callable[[Mapping[str, float | str], int], None] = lambda values, rank: None,
        answer_observer: Callable[[msg.Watch | msg.AskStory | msg.EndJob], msg.Reply] | None = None,
        on_hosts: Callable[[CenterMade | CenterSource | RoundReached], None] = lambda event: None,
    ) -> None:
        self.coordinator = coordinator
        self._job_state = job_state
        self._leader = 0
        self._send = send
        self._handler = handler
        self._on_drop = on_drop
        self._on_report = on_report
        self._answer_observer = answer_observer
        self._on_hosts = on_hosts

    def receive(self, received: Received, now: float) -> None:
        """Handle one request; bytes that are none are answered with a failure."""
        peer, request_id, data = received
        try:
            if not request_id:
                raise ProtocolError("got a message that is not framed as a request: expected a request id and a body")
            request = decode_request(data)
        except ProtocolError as exc:
            self._reply(SendReply(Requester(peer, request_id), msg.Failure(kind="ProtocolError", message=str(exc))))
            return
        if isinstance(request, (msg.Watch, msg.AskStory, msg.EndJob)) and self._answer_observer is not None:
            self._reply(SendReply(Requester(peer, request_id), self._answer_observer(request)))
            return
        if isinstance(request, msg.Report) and (reporter := self.coordinator.roster.of_peer(peer)) is not None:
            self._on_report(request.metrics, reporter.rank)
        self.carry_out(self.coordinator.handle(peer, request_id, request, now))

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Carry out the coordinator's actions; who is answered sees who is the leader by then, and how many live."""
        roster = self.coordinator.roster
        self._job_state.num_live = roster.num_live_on(0), roster.num_live
        leader = roster.leader
        if leader != self._leader:
            self._leader = self._job_state.leader = leader
        reply, data = None, b""
        for action in actions:
            if isinstance(action, SendReply):
                if reply is not action.reply:  # those of a collective call all get the same one
                    reply, data = action.reply, self._encoded(action.reply)
                self._send(*action.to, data)
            elif isinstance(action, StopJob):
                log.info("the job stops: %s", action.reason)
                self._job_state.stop(action.reason)
            elif isinstance(action, CenterDropped):
                self._on_drop(action.shared)
            elif isinstance(action, (CenterMade, CenterSource, RoundReached)):
                self._on_hosts(action)
            else:
                self._reply(SendReply(action.to, self._answer_user(action)))

    def _reply(self, action: SendReply) -> None:
        self._send(*action.to, self._encoded(action.reply))

    @staticmethod
    def _encoded(reply: msg.Reply) -> bytes:
        if isinstance(reply, msg.Failure):
            # The worker raises it, so the launcher shows it with the line of the script.
            log.info("request refused: %s: %s", reply.kind, reply.message.partition("\n")[0])
        try:
            return encode(reply)
        except ProtocolError as exc:
            log.warning("an answer cannot be sent: %s", exc)
            return encode(msg.Failure(kind="ProtocolError", message=str(exc)))

    def _answer_user(self, action: AnswerUser) -> msg.Reply:
        if self._handler is None:
            text = f"got request {action.req!r}, but this job's controller answers no requests of its own"
            return msg.Failure(kind="ProtocolError", message=f"{text}; give Controller a handler")
        try:
            return msg.UserReply(answer=self._handler(action.req, action.rank, action.info))
        except PlatoonError as exc:
            return msg.Failure(kind=type(exc).__name__, message=str(exc))
        # The user's code: the requester is told, the job lives on. Going on with SystemExit would kill the workers.
        except (Exception, SystemExit, GeneratorExit) as exc:
            log.exception("the user's handler failed on request %r of rank %d", action.req, action.rank)
            text = f"the controller's handler raised {type(exc).__name__} on {action.req!r}: {exc}"
            return msg.Failure(kind="ProtocolError", message=f"{text}; see the controller's log")
