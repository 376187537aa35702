"""The hosts of a simulated job: workers that only send requests, and deputies that send what real ones do.

Each deputy has a real link to the first host. The copy of the other hosts' rows is decoded and dropped: real deputies
write it into the shared memory of their own machines, which would be this one's processor time here.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq

import platoon_base
from platoon_base.channels.host_link import LinkClient
from platoon_base.channels.keys import Keys
from platoon_base.coordination.encoding import decode_reply
from platoon_base.coordination.messages import Failure
from platoon_base.courier.messages import Combine, Filled, Gather, Gathered, Listening, Made, Peers
from platoon_base.hosts.place import Place
from platoon_base.job.files import JobFiles
from platoon_base.multihost import messages as between
from platoon_base.multihost.rendezvous import Introduction
from platoon_base.shm.job_state import WORKER_LOCKS, JobState
from platoon_base.shm.mirrored_rows import MIRRORED
from platoon_base.shm.segments import Segment

__all__ = ["WORKERS", "Deputy", "FirstHost", "SimulatedHost"]

WORKERS = 8
MIRROR_S = 0.1  # between two looks of a deputy at its workers' rows


class SimulatedHost:
    """The workers of one host.

    Attributes
    ----------
    host : int
    ranks : range
    answered : list of (int, reply)
        Worker and answer, since the last `take`.
    training : bool
        Whether the workers make steps.
    stopped : str
        The reason to stop; empty while there is none.
    combined, couriers : int
        The latest round of a waiting rule that may be ended, and how many couriers this host knows.
    """

    def __init__(self, host: int) -> None:
        self.host, self.ranks = host, range(host * WORKERS, (host + 1) * WORKERS)
        self.answered: list[tuple[int, Any]] = []
        self.training = False
        self.stopped, self.combined, self.couriers = "", 0, 0
        self._ids = itertools.count(1)
        self._latest: tuple[bytes, Any] = (b"", None)

    def take(self) -> list[tuple[int, Any]]:
        """Return the answers that have come."""
        answered, self.answered = self.answered, []
        return answered

    def _note(self, worker: int, data: bytes) -> None:
        if data != self._latest[0]:  # workers decode their answers themselves, at the same time
            self._latest = data, decode_reply(data)
        reply = self._latest[1]
        if isinstance(reply, Failure):
            raise SystemExit(f"worker {worker} of host {self.host} was refused: {reply.message}")
        self.answered.append((worker, reply))


class FirstHost(SimulatedHost):
    """The workers of the first host: they have sockets to the coordinator, and rows in shared memory.

    Parameters
    ----------
    folder : str
        Of the job.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(0)
        files = JobFiles.read(Path(folder))
        self._context = zmq.Context()
        self.sockets = [self._context.socket(zmq.DEALER) for _ in self.ranks]
        for socket in self.sockets:
            socket.linger = 0
            socket.connect(files.address)
        self._segment = Segment.attach(files.job_state)
        self._state = JobState(self._segment.buffer, 0, create=False)

    def join(self) -> None:
        """Take the locks of the workers, as each does before it says hello."""
        for rank in self.ranks:
            self._segment.try_lock(WORKER_LOCKS + rank)

    def send(self, requests: dict[int, bytes], together: bool) -> None:
        """Send requests of workers; each has a socket of its own."""
        for worker, data in requests.items():
            self.sockets[worker].send(next(self._ids).to_bytes(8, "little") + data)

    def receive(self) -> None:
        """Take what has come."""
        for worker, socket in enumerate(self.sockets):
            while socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                self._note(worker, socket.recv(zmq.NOBLOCK)[8:])

    def tick(self, now: float) -> None:
        """Make steps, and look whether the job stops."""
        self.stopped = self._state.stop_reason
        if self.training:
            for rank in self.ranks:
                row = self._state.row(rank)
                row["steps"] += 1
                row["updated"] = now

    def leave(self) -> None:
        """Free the locks, and close everything."""
        self._state.detach()
        self._segment.close()
        self._context.destroy(linger=0)


class Deputy(SimulatedHost):
    """The workers of another host, and its deputy's end of the link.

    Parameters
    ----------
    host, hosts : int
    endpoint : str
    keys : Keys
    """

    def __init__(self, host: int, hosts: int, endpoint: str, keys: Keys) -> None:
        super().__init__(host)
        self.welcome: between.Welcome | None = None
        self.over = False
        self.bytes = 0
        self._rows = np.zeros(WORKERS, MIRRORED)
        self._rows["row"]["lives"] = 1
        self._held = bytes(WORKERS)
        self._rows_sent, self._has_courier = True, False
        self._next_poll_at = time.monotonic() + MIRROR_S * host / hosts
        self._link = LinkClient(f"tcp://{endpoint}", keys)
        self.sockets = self._link.sockets
        arrival = Introduction(Place(hosts, host), ["cpu"] * WORKERS, "simulated").arrival("127.0.0.1", "127.0.0.1")
        assert arrival.version == platoon_base.__version__
        self._send(arrival)

    def _send(self, message: between.Up) -> None:
        self._link.peer.send(between.encode(message))

    def _changed(self) -> between.Rows:
        return between.Rows(time.monotonic(), list(self.ranks), self._rows.tobytes(), self._held)

    def join(self) -> None:
        """Let the next requests carry the rows of workers that hold their locks."""
        self._held, self._rows_sent = b"\1" * WORKERS, False

    def send(self, requests: dict[int, bytes], together: bool) -> None:
        """Relay requests of workers, in one message or in one each."""
        found = [
            between.Forwarded(b"\0%d" % worker, next(self._ids).to_bytes(8, "little"), data)
            for worker, data in requests.items()
        ]
        for batch in [found] if together else [[each] for each in found]:
            rows = between.Rows(time.monotonic()) if self._rows_sent else self._changed()
            self._rows_sent = True
            self._send(between.Requests(batch, rows))

    def receive(self) -> None:
        """Take what has come."""
        self._link.receive()
        while self._link.inbox:
            body = self._link.inbox.popleft()
            self.bytes += len(body)
            message = between.decode_down(body)
            if isinstance(message, between.Replies):
                for each in message.replies:
                    self._note(int(each.peer[1:]), each.data)
            elif isinstance(message, between.JobState):
                self.stopped = message.stop
                np.frombuffer(message.rows.rows, MIRRORED)
            elif isinstance(message, between.Welcome):
                self.welcome = message
                self._send(between.Begun(message.job))
            elif isinstance(message, between.StartCourier):
                if not self._has_courier:
                    self._has_courier = True
                    self._send(Listening("127.0.0.1", 1, "00"))
            elif isinstance(message, Peers):
                self.couriers = len(message.peers)
            elif isinstance(message, Made):
                self._send(Filled())
            elif isinstance(message, Gather):
                self._send(Gathered(message.number, dict.fromkeys(message.hosts, message.number - 1)))
            elif isinstance(message, Combine):
                self.combined = message.number
            elif isinstance(message, between.JobOver):
                self.over = True
                self._link.peer.acknowledge()
            elif isinstance(message, between.Refused):
                raise SystemExit(f"host {self.host} was refused: {message.why}")

    def tick(self, now: float) -> None:
        """Send the rows if it is time, and heartbeats."""
        if now >= self._next_poll_at:
            self._next_poll_at = max(now, self._next_poll_at + MIRROR_S)
            if self.training and not self._link.peer.in_flight:
                self._rows["row"]["steps"] += 1
                self._rows["row"]["updated"] = now
                self._send(between.Requests([], self._changed()))
        self._link.peer.tick(now)

    def leave(self) -> None:
        """Report the end of the workers, after their last rows."""
        self._held, self.training = bytes(WORKERS), False
        self._rows["row"]["left"] = 1
        self._send(between.Requests([], self._changed()))
        for rank in self.ranks:
            self._send(between.WorkerEnded(rank, 0, at=time.time()))

    def close(self) -> None:
        """Close the link."""
        self._link.close()
