"""The leader: the one worker that saves and prints for all."""

from __future__ import annotations

import time

from platoon_base.timeouts import SHORT_POLL_S, timeout
from platoon_base.worker.connection import Connection


class Leadership:
    """Whether this worker is the leader; see `Worker.is_leader`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._job_state, self._rank = connection.job_state, connection.identity.rank
        self._waited_for = -1

    def held(self) -> bool:
        """Return whether this worker leads; if the leader just left, wait for the reason."""
        leader = self._job_state.leader
        may_change = leader != self._rank and self._waited_for != leader and not self._connection.closed
        if may_change and self._job_state.row(leader)["left"]:
            self._await_end(leader)
        leads = self._job_state.leader == self._rank
        if leads and self._rank:
            self._connection.progress.row["led"] = 1  # The launcher reports the new leader.
        return leads

    def _await_end(self, leader: int) -> None:
        deadline = time.monotonic() + timeout("end")
        while not self._job_state.row(leader)["ending"] and time.monotonic() < deadline:
            time.sleep(SHORT_POLL_S)
        time.sleep(SHORT_POLL_S)  # The controller writes "ending" first.
        self._waited_for = leader
