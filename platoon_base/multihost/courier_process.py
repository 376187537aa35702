"""One courier process: its launcher exchanges lines with it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess

import msgspec

from platoon_base.courier import messages as between
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)

_BLOCK = 1 << 16


class CourierProcess:
    """A running courier, with pipes to its standard input and output."""

    def __init__(self, process: subprocess.Popen[bytes], host: int) -> None:
        self._process, self._host = process, host
        self._rest = b""
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)

    @property
    def fds(self) -> list[int]:
        return [] if self._process.stdout is None else [self._process.stdout.fileno()]

    @property
    def status(self) -> int | None:
        return self._process.returncode

    def send(self, order: between.Order) -> None:
        """Send an order; an ended courier drops it, and `read` reports the end."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(between.encode(order))
                self._process.stdin.flush()

    def read(self) -> list[between.News] | None:
        """Return its messages; None at its end."""
        if self._process.stdout is None:
            return None
        try:
            block = os.read(self._process.stdout.fileno(), _BLOCK)
        except BlockingIOError:
            return []
        if not block:
            return None
        *lines, self._rest = (self._rest + block).split(b"\n")
        found: list[between.News] = []
        for line in lines:
            try:
                found.append(between.decode_news(line))
            except msgspec.MsgspecError as exc:
                log.warning("the courier reports %r: %s", line[:100], exc)
        return found

    def close(self) -> None:
        """End it; kill it if it does not end soon."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout("end"))
        except subprocess.TimeoutExpired:
            self._process.kill()
            try:
                self._process.wait(timeout("end"))
            except subprocess.TimeoutExpired:
                log.warning("the courier of host %d was killed and does not end: check its disks", self._host)
        if self._process.stdout is not None:
            self._process.stdout.close()
