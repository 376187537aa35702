"""One process of a courier, as its launcher sees it: the lines to and from it, and the residuals that it saves."""

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
    """A courier that runs.

    Parameters
    ----------
    process : subprocess.Popen
        With pipes to its standard input and output.
    host : int
        This one, for messages.
    """

    def __init__(self, process: subprocess.Popen[bytes], host: int) -> None:
        self._process, self._host = process, host
        self._rest = b""
        self._keeping: dict[str, float] = {}  # the keys of residuals that it saves, and until when they are waited for
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)

    @property
    def fds(self) -> list[int]:
        """The file descriptor to poll; call `read` when it is readable."""
        return [] if self._process.stdout is None else [self._process.stdout.fileno()]

    @property
    def status(self) -> int | None:
        """Its exit status, once it has ended."""
        return self._process.returncode

    def send(self, order: between.Order) -> None:
        """Send an order; one that has ended gets none, which `read` will find."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(between.encode(order))
                self._process.stdin.flush()

    def keep(self, order: between.Keep) -> None:
        """Let it save a residual."""
        self._keeping[order.key] = time.monotonic() + STALL_TIMEOUT_S
        self.send(order)

    def is_saving(self, now: float) -> bool:
        """Return whether it saves a residual that is still waited for."""
        for key in [key for key, until in self._keeping.items() if now > until]:
            self._take_kept(between.Kept(key, f"it is not written within {STALL_TIMEOUT_S:g} s. Check that disk"))
        return bool(self._keeping)

    def read(self) -> list[between.News] | None:
        """Return its messages, but for those about residuals, which are logged; None once it has ended."""
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
        """Let it end by itself, once it has saved what it is to save."""
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
            self._process.wait()
        if self._keeping:
            self.read()  # its last words
        for key in list(self._keeping):
            self._take_kept(between.Kept(key, "the courier has ended before it was written"))
        if self._process.stdout is not None:
            self._process.stdout.close()
