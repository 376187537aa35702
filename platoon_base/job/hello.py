"""The first request of a worker to its controller."""

from __future__ import annotations

import os
import socket

from platoon_base.channels.base import ClientChannel
from platoon_base.channels.client import ControlClient
from platoon_base.coordination import messages as msg
from platoon_base.system.process import pid_namespace
from platoon_base.timeouts import timeout
from platoon_base.worker.connection import Identity


def send_hello(channel: ClientChannel, rank: int | None, device: str, timeout_s: float | None = None) -> Identity:
    """Introduce this process to the controller; return the worker's identity."""
    hello = msg.Hello(
        protocol=msg.PROTOCOL,
        pid=os.getpid(),
        pid_namespace=pid_namespace(),
        host=socket.gethostname(),
        device=device,
        rank=rank,
    )
    client = ControlClient(channel, -1 if rank is None else rank)
    reply = client.ask(hello, msg.Welcome, timeout("connect") if timeout_s is None else timeout_s)
    return Identity(
        reply.rank,
        reply.size,
        reply.local_rank,
        reply.local_size,
        reply.seed,
        device,
        reply.late,
        reply.resume_at,
        reply.kept,
    )
