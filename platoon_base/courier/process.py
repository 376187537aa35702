"""The process of a courier; a launcher starts and ends it."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import signal
import sys
from pathlib import Path

from platoon_base.centers.host import HostCenters
from platoon_base.centers.stripes import COURIER
from platoon_base.compression.packing import Residuals
from platoon_base.courier import messages as between
from platoon_base.courier.background import OpenCenter
from platoon_base.courier.courier import Courier, be_nice
from platoon_base.layout import Layout, ParameterSpec
from platoon_base.rules.hosts import hosts_rule
from platoon_base.shm.segments import HiddenName
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
    courier: Courier | None = None
    rest = b""
    with contextlib.ExitStack() as stack:
        while True:
            if courier is not None:
                ready = courier.step([orders])
            else:
                ready = set(select.select([orders], [], [])[0])
            if orders not in ready:
                continue
            try:
                block = os.read(orders, _BLOCK)
            except BlockingIOError:
                continue
            if not block:
                return
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                order = between.decode_order(line)
                if isinstance(order, between.Begin):
                    courier = stack.enter_context(contextlib.closing(_start(order, news)))
                elif courier is not None:
                    courier.handle_order(order)


def _start(order: between.Begin, news: int) -> Courier:
    start = order.start
    specs = tuple(ParameterSpec(name, tuple(shape), dtype) for name, shape, dtype in start.specs)
    layout = Layout(specs, start.moments)
    memory: mmap.mmap | None = None
    if order.memory >= 0:
        size = Residuals.size_bytes(layout)
        # A restarted courier sets the same size, which keeps the contents.
        os.ftruncate(order.memory, size)
        memory = mmap.mmap(order.memory, size)
    path, prefix = order.center
    name = HiddenName(Path(path), prefix)

    def open_center() -> OpenCenter:
        return HostCenters(name).watch(layout, COURIER)

    def report(message: between.News) -> None:
        os.write(news, between.encode(message))

    rule = hosts_rule(start.rule)
    return Courier(order.world, open_center, layout, rule, start.every_s, order.filled, report, memory)
