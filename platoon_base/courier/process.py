"""The process of a courier; a launcher starts and ends it."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from platoon_base.centers.gossip import GossipCenters
from platoon_base.centers.host import COURIER, HostCenters
from platoon_base.compression.packing import Residuals
from platoon_base.courier import messages as between
from platoon_base.courier.courier import POLL_INTERVAL_S, Courier, OpenCenter, be_nice
from platoon_base.courier.keeping import ResidualKeeper, Restoring
from platoon_base.layout import Layout, ParameterSpec
from platoon_base.rules.hosts import hosts_rule
from platoon_base.shm.hidden_names import HiddenName
from platoon_base.system.orphan import DATA_SERVER, end_with

_BLOCK = 1 << 16


def main() -> None:
    """Serve until the launcher closes standard input, or ends."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s courier %(levelname)s: %(message)s")
    for number in (signal.SIGINT, signal.SIGHUP):
        # Ctrl-C in a terminal is for the launcher, which ends this process.
        signal.signal(number, signal.SIG_IGN)
    end_with(os.getppid(), DATA_SERVER)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    be_nice()
    _serve(sys.stdin.fileno(), sys.stdout.fileno())


def _serve(orders: int, news: int) -> None:
    os.set_blocking(orders, False)
    starting: _Starting | None = None
    courier: Courier | None = None
    waiting: list[between.Order] = []  # Orders wait until there is a courier.
    rest = b""
    with contextlib.ExitStack() as stack:
        while True:
            if courier is None and starting is not None and starting.is_ready():
                courier = stack.enter_context(contextlib.closing(starting.courier()))
                starting = None
            if courier is not None:
                while waiting:
                    courier.handle_order(waiting.pop(0))
                ready = courier.step([orders])
            else:
                ready = set(select.select([orders], [], [], None if starting is None else POLL_INTERVAL_S)[0])
            if orders not in ready:
                continue
            try:
                block = os.read(orders, _BLOCK)
            except BlockingIOError:
                continue
            if not block:
                if courier is not None:
                    courier.finish()
                return
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                order = between.decode_order(line)
                if isinstance(order, between.Begin):
                    starting = _Starting(order, reporter(news))
                else:
                    waiting.append(order)


def reporter(news: int) -> Callable[[between.News], None]:
    """Return a function that writes messages to a pipe; it is thread-safe."""
    lock = threading.Lock()

    def report(message: between.News) -> None:
        with lock:
            os.write(news, between.encode(message))

    return report


class _Starting:
    """A courier that begins after its residual is restored."""

    def __init__(self, order: between.Begin, report: Callable[[between.News], None]) -> None:
        self._order, self._report = order, report
        specs = tuple(ParameterSpec(name, tuple(shape), dtype) for name, shape, dtype in order.specs)
        self._layout = layout = Layout(specs, order.moments)
        self._memory: mmap.mmap | None = None
        self._restoring: Restoring | None = None
        if order.memory >= 0:
            size = Residuals.size_bytes(layout)
            # The size is the same for each courier of this host: the contents stay.
            os.ftruncate(order.memory, size)
            self._memory = mmap.mmap(order.memory, size)
            if order.resumed is not None:
                residuals = Residuals(layout, self._memory)
                self._restoring = ResidualKeeper(order.world, layout, residuals, report).restore(*order.resumed)

    def is_ready(self) -> bool:
        return self._restoring is None or self._restoring.step()

    def courier(self) -> Courier:
        order, layout = self._order, self._layout
        path, prefix = order.center
        name = HiddenName(Path(path), prefix)

        def open_center() -> OpenCenter:
            return GossipCenters(name).watch(layout, COURIER) or HostCenters(name).watch(layout, COURIER)

        rule = hosts_rule(order.rule)
        return Courier(
            order.world, open_center, layout, rule, order.every_s, order.filled, self._report, self._memory
        )  # fmt: skip
