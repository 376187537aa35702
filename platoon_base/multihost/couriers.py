"""The courier process of one host: its launcher starts it, exchanges lines, and restarts it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable

import msgspec

from platoon_base.compression.codecs import codec_of
from platoon_base.courier import messages as between
from platoon_base.job.files import JobFiles
from platoon_base.system.job_paths import path_of
from platoon_base.timeouts import timeout
from platoon_base.worker_process.program import python_main

log = logging.getLogger(__name__)


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
        self._process: CourierProcess | None = None
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
        self._process = CourierProcess(process, host)
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
        if self._process is not None:
            self._process.send(order)

    @property
    def fds(self) -> list[int]:
        return [] if self._process is None else self._process.fds

    def step(self) -> None:
        if self._process is None:
            if self._begin is not None and time.monotonic() >= self._start_at:
                self._launch()
            return
        found = self._process.read()
        if found is None:
            self._has_ended(self._process)
            return
        for news in found:
            if isinstance(news, between.Filled) and self._begin is not None:
                self._begin = msgspec.structs.replace(self._begin, filled=True)
            self._on_news(news)

    def _has_ended(self, process: CourierProcess) -> None:
        self._process = None
        process.close()
        self._start_at = time.monotonic() + timeout("restart")
        log.warning("the courier of this host ended (status %s): restarting it", process.status)

    def close(self) -> None:
        """End the courier."""
        self._begin, self._made, self._peers, self._round = None, False, None, []
        process, self._process = self._process, None
        if process is not None:
            process.close()
        memory, self._memory = self._memory, -1
        if memory >= 0:
            os.close(memory)


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

    def send(self, order: between.ToCourier) -> None:
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
