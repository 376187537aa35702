"""One courier process: its launcher exchanges lines with it, and tracks the residuals it saves."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time

import msgspec

from platoon_base.checkpoints.writer import STALL_TIMEOUT_S
from platoon_base.courier import messages as between

__all__ = ["CourierProcess"]

log = logging.getLogger(__name__)

_EXIT_TIMEOUT_S = 2.0
_BLOCK = 1 << 16


class CourierProcess:
    """A running courier, with pipes to its standard input and output."""

    def __init__(self, process: subprocess.Popen[bytes], host: int) -> None:
        self._process, self._host = process, host
        self._rest = b""
        self._keeping: dict[str, float] = {}  # Keys of residuals that it saves, and the deadlines.
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

    def keep(self, order: between.Keep) -> None:
        self._keeping[order.key] = time.monotonic() + STALL_TIMEOUT_S
        self.send(order)

    def is_saving(self, now: float) -> bool:
        """Return whether it saves a residual; warn of those past their deadline."""
        for key in [key for key, until in self._keeping.items() if now > until]:
            self._take_kept(between.Kept(key, f"it is not written within {STALL_TIMEOUT_S:g} s. Check that disk"))
        return bool(self._keeping)

    def read(self) -> list[between.News] | None:
        """Return its messages, except those about residuals, which are logged; None at its end."""
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
                news = between.decode_news(line)
            except msgspec.MsgspecError as exc:
                log.warning("the courier says %r: %s", line[:100], exc)
                continue
            if isinstance(news, between.Kept):
                self._take_kept(news)
            elif isinstance(news, between.NotRestored):
                log.warning(
                    "host %d starts with a residual of zero, and what --hosts-compression had left out of its "
                    "contributions before the checkpoint is lost: %s",
                    self._host,
                    news.problem,
                )
            else:
                found.append(news)
        return found

    def _take_kept(self, kept: between.Kept) -> None:
        self._keeping.pop(kept.key, None)
        if kept.problem:
            log.warning(
                "the residual of host %d is missing in a checkpoint, and a job that goes on from that one starts "
                "without it: %s",
                self._host,
                kept.problem,
            )

    def release(self) -> None:
        """Let it end by itself after saving."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def close(self) -> None:
        """End it; kill it if it does not end soon."""
        self.release()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            try:
                self._process.wait(_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                log.warning("the courier of host %d does not end, though it was killed. Check its disks", self._host)
        if self._keeping:
            self.read()  # It may have written messages before its end.
        for key in list(self._keeping):
            self._take_kept(between.Kept(key, "the courier has ended before it was written"))
        if self._process.stdout is not None:
            self._process.stdout.close()
