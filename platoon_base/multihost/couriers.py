"""The courier process of one host: its launcher starts it, exchanges lines, and restarts it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import msgspec

from platoon_base.compression.codecs import codec_of
from platoon_base.courier import messages as between
from platoon_base.job.files import JobFiles
from platoon_base.system.job_paths import path_of
from platoon_base.timeouts import timeout
from platoon_base.worker_process.program import python_main

log = logging.getLogger(__name__)

_BLOCK = 1 << 16


class CourierKeeper:
    """Runs the courier of one host while its workers share parameters."""

    def __init__(self, files: JobFiles, on_news: Callable[[between.News], None]) -> None:
        self._files = files
        self._on_news = on_news
        self._begin: between.Begin | None = None
        self._made = False
        self._peers: between.Peers | None = None
        self._lost: dict[int, between.Lost] = {}
        self._round: list[between.Gather | between.Combine] = []  # Orders about the latest round.
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Any = None  # To its standard input.
        self._news: Any = None  # From its standard output.
        self._rest = b""
        self._start_at = 0.0
        self._memory = -1  # Memory for the state that a restarted courier needs.

    def _start(self, order: between.Start) -> None:
        """Start the courier unless it runs."""
        if self._begin is None:
            world = self._files.world
            if codec_of(world.compression) is not None:
                self._memory = os.memfd_create("platoon-residuals")
            self._begin = between.Begin(world, self._files.center_place, order, memory=self._memory)
            self._launch()

    def _launch(self) -> None:
        if self._begin is None:
            return
        host, log_folder = self._files.world.host, self._files.origin.log_folder
        with contextlib.ExitStack() as stack:
            output = None
            if log_folder:
                path = path_of(log_folder, "courier_log", host=host)
                with contextlib.suppress(OSError):
                    output = stack.enter_context(open(path, "ab", 0))
            try:
                process = subprocess.Popen(
                    python_main("platoon_base.courier.process"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=[self._memory] if self._memory >= 0 else (),
                )
            except OSError as exc:
                log.warning("cannot start the courier, trying again in %g s: %s", timeout("restart"), exc)
                self._start_at = time.monotonic() + timeout("restart")
                return
        self._process, self._pipe, self._news, self._rest = process, process.stdin, process.stdout, b""
        os.set_blocking(self._news.fileno(), False)
        self._send(self._begin)
        made = between.Made() if self._made else None
        for order in (self._peers, *self._lost.values(), made, *self._round):
            if order is not None:
                self._send(order)

    def handle_order(self, order: between.Order) -> None:
        """Start or end the courier, or pass an order to it, and to one that is started again."""
        if isinstance(order, between.Start):
            return self._start(order)
        if isinstance(order, between.Dropped):
            return self.close()
        if isinstance(order, between.Made):
            self._made = True
        elif isinstance(order, between.Peers):
            self._peers = order
            self._lost = {host: lost for host, lost in self._lost.items() if host not in order.peers}
        elif isinstance(order, between.Lost):
            self._lost[order.host] = order
        elif isinstance(order, between.Gather):
            self._round = [order]
        elif isinstance(order, between.Combine):
            self._round.append(order)
        self._send(order)

    def _send(self, order: between.ToCourier) -> None:
        """Send an order; an ended courier drops it, and `step` notices the end."""
        if self._process is not None:
            with contextlib.suppress(OSError, ValueError):
                self._pipe.write(between.encode(order))
                self._pipe.flush()

    @property
    def fds(self) -> list[int]:
        return [] if self._process is None else [self._news.fileno()]

    def step(self) -> None:
        if self._process is None:
            if self._begin is not None and time.monotonic() >= self._start_at:
                self._launch()
            return
        try:
            block = os.read(self._news.fileno(), _BLOCK)
        except BlockingIOError:
            return
        if not block:
            status = self._end(self._process)
            self._start_at = time.monotonic() + timeout("restart")
            log.warning("the courier of this host ended (status %s): restarting it", status)
            return
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            try:
                news = between.decode_news(line)
            except msgspec.MsgspecError as exc:
                log.warning("the courier reports %r: %s", line[:100], exc)
                continue
            if isinstance(news, between.Filled) and self._begin is not None:
                self._begin = msgspec.structs.replace(self._begin, filled=True)
            self._on_news(news)

    def close(self) -> None:
        """End the courier."""
        self._begin, self._made, self._peers, self._round = None, False, None, []
        if self._process is not None:
            self._end(self._process)
        memory, self._memory = self._memory, -1
        if memory >= 0:
            os.close(memory)

    def _end(self, process: subprocess.Popen[bytes]) -> int | None:
        """End the process, or kill it if it does not end soon; return its status."""
        self._process = None
        with contextlib.suppress(OSError):
            self._pipe.close()
        for kills in (False, True):
            if kills:
                process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout("end"))
                break
        else:
            host = self._files.world.host
            log.warning("the courier of host %d was killed and does not end: check its disks", host)
        self._news.close()
        return process.returncode
