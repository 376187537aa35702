"""The process of a courier, which a launcher starts and ends."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import signal
import sys
from pathlib import Path

from platoon_base.centers.host import COURIER, HostCenters
from platoon_base.compression.packing import Residuals
from platoon_base.courier import messages as between
from platoon_base.courier.courier import Courier, OpenCenter, be_nice
from platoon_base.courier.keeping import ResidualKeeper
from platoon_base.layout import Layout, ParameterSpec
from platoon_base.rules.hosts import hosts_rule
from platoon_base.shm.hidden_names import HiddenName
from platoon_base.system.orphan import DATA_SERVER, end_with

_BLOCK = 1 << 16


def main() -> None:
    """Serve until the launcher closes standard input, or ends."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s courier %(levelname)s: %(message)s")
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C in a terminal is for the launcher, which ends this process
    end_with(os.getppid(), DATA_SERVER)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    be_nice()
    _serve(sys.stdin.fileno(), sys.stdout.fileno())


def _serve(orders: int, news: int) -> None:
    """Carry out the launcher's orders, and step the courier in between."""
    os.set_blocking(orders, False)
    courier: Courier | None = None
    rest = b""
    with contextlib.ExitStack() as stack:
        while True:
            ready = {orders} if courier is None else courier.step([orders])
            if orders not in ready:
                continue
            if courier is None:
                os.set_blocking(orders, True)
            try:
                block = os.read(orders, _BLOCK)
            except BlockingIOError:
                continue
            if not block:
                if courier is not None:
                    courier.finish()
                return
            os.set_blocking(orders, False)
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                order = between.decode_order(line)
                if isinstance(order, between.Begin):
                    courier = stack.enter_context(contextlib.closing(_begin(order, news)))
                elif courier is not None:
                    courier.handle_order(order)


def _begin(order: between.Begin, news: int) -> Courier:
    path, prefix = order.center
    specs = tuple(ParameterSpec(name, tuple(shape), dtype) for name, shape, dtype in order.specs)
    layout = Layout(specs, order.moments)

    def report(message: between.News) -> None:
        os.write(news, between.encode(message))

    centers, rule = HostCenters(HiddenName(Path(path), prefix)), hosts_rule(order.rule)

    def open_center() -> OpenCenter:
        return centers.watch(layout, COURIER)

    memory = None
    if order.memory >= 0:
        size = Residuals.size_bytes(layout)
        os.ftruncate(order.memory, size)  # the same size for each courier of this host: what it holds stays
        memory = mmap.mmap(order.memory, size)
        if order.resumed is not None:
            ResidualKeeper(order.world, layout, Residuals(layout, memory), report).restore(*order.resumed)
    return Courier(order.world, open_center, layout, rule, order.every_s, order.filled, report, memory)
