"""The controller's side of the control messages: invalid bytes are answered with a failure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from platoon_base.channels import Received
from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import (
    Action,
    AnswerUser,
    CenterEvent,
    Requester,
    SendReply,
    StopJob,
)
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.encoding import decode_request, encode
from platoon_base.errors import PlatoonError, ProtocolError
from platoon_base.shm.job_state import JobState

log = logging.getLogger(__name__)

UserHandler = Callable[[str, int, Any], Any]


class ControlServer:
    """Passes requests to the coordinator, and carries out the actions that it returns.

    ``send(peer, request_id, data)`` delivers an answer. ``handler(req, rank, info)`` answers
    `Worker.send_req`. ``on_center`` is called before workers are notified, such as that all have
    released the shared parameters. ``answer_observer`` answers clients outside the job.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        job_state: JobState,
        send: Callable[[bytes, bytes, bytes], None],
        handler: UserHandler | None = None,
        on_center: Callable[[CenterEvent], None] = lambda event: None,
        on_report: Callable[[Mapping[str, float | str], int], None] = lambda values, rank: None,
        answer_observer: Callable[[msg.Watch | msg.AskStory | msg.EndJob], msg.Reply] | None = None,
    ) -> None:
        self.coordinator = coordinator
        self._job_state = job_state
        self._leader = 0
        self._send = send
        self._handler = handler
        self._on_center = on_center
        self._on_report = on_report
        self._answer_observer = answer_observer

    def receive(self, received: Received, now: float) -> None:
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
        if (
            isinstance(request, msg.Report)
            and not request.settings
            and (reporter := self.coordinator.roster.of_peer(peer)) is not None
        ):
            self._on_report(request.metrics, reporter.rank)
        self.carry_out(self.coordinator.handle(peer, request_id, request, now))

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Carry out the coordinator's actions; publish leader and live workers before answers."""
        roster = self.coordinator.roster
        self._job_state.num_live = roster.num_live_on(0), roster.num_live
        leader = roster.leader
        if leader != self._leader:
            self._leader = self._job_state.leader = leader
        reply, data = None, b""
        for action in actions:
            if isinstance(action, SendReply):
                # All workers of a collective call get the same reply.
                if reply is not action.reply:
                    reply, data = action.reply, self._encoded(action.reply)
                self._send(*action.to, data)
            elif isinstance(action, StopJob):
                log.info("stopping the job: %s", action.reason)
                self._job_state.stop(action.reason)
            elif isinstance(action, AnswerUser):
                self._reply(SendReply(action.to, self._answer_user(action)))
            else:
                self._on_center(action)

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
            log.warning("cannot send an answer: %s", exc)
            return encode(msg.Failure(kind="ProtocolError", message=str(exc)))

    def _answer_user(self, action: AnswerUser) -> msg.Reply:
        if self._handler is None:
            text = f"got request {action.req!r}, and the controller of this job has no handler for requests"
            return msg.Failure(kind="ProtocolError", message=f"{text}; pass a handler to Controller")
        try:
            return msg.UserReply(answer=self._handler(action.req, action.rank, action.info))
        except PlatoonError as exc:
            return msg.Failure(kind=type(exc).__name__, message=str(exc))
        # An error of the user's code is reported to the requester. Raising SystemExit here would
        # kill the workers.
        except (Exception, SystemExit, GeneratorExit) as exc:
            log.exception("the user's handler failed on request %r of rank %d", action.req, action.rank)
            text = f"the controller's handler raised {type(exc).__name__} on {action.req!r}: {exc}"
            return msg.Failure(kind="ProtocolError", message=f"{text}; see the controller's log")
