"""The courier of one host in hosts_model.py: ``FOLDER HOST HOSTS ADDRESS BYTES SECONDS``; writes seconds per exchange.

The courier, the center and the links are real; who starts it, and tells it where the others listen, is not.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from platoon_base.centers.host import COURIER, HostCenter, HostCenters
from platoon_base.courier import messages as between
from platoon_base.courier.courier import Courier
from platoon_base.hosts.world import World
from platoon_base.job.files import segment_prefix
from platoon_base.layout import Layout
from platoon_base.rules import EASGD
from platoon_base.rules.hosts import hosts_rule

START_S = 30.0


def timed(center: HostCenter, taken: list[float]) -> HostCenter:
    """Add to ``taken`` the seconds of each exchange, from the copy of the center to its move."""
    copy, move, began = center.copy_parameters, center.move, [0.0]

    def copy_parameters(*arguments) -> None:
        began[0] = time.perf_counter()
        copy(*arguments)

    def move_center(*arguments, **options) -> bool:
        is_moved = move(*arguments, **options)
        taken.append(time.perf_counter() - began[0])
        return is_moved

    center.copy_parameters, center.move = copy_parameters, move_center
    return center


def main() -> None:
    """Exchange as often as possible for some seconds."""
    folder, host, hosts, address = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    size_bytes, seconds = int(sys.argv[5]), float(sys.argv[6])
    parameters = [np.full(size_bytes // 4, host, np.float32)]
    layout, news = Layout.of(parameters), []
    centers = HostCenters(f"{segment_prefix()}model{os.getpid()}", workers=1, several_hosts=True)
    center = centers.create(layout, EASGD(), 0)
    center.fill(parameters, [])
    names = [f"h{i}" for i in range(hosts)]
    world = World([1] * hosts, host, names, [address if i == host else "" for i in range(hosts)], "17" * 32)
    taken = []
    courier = Courier(
        world,
        lambda: timed(centers.watch(layout, COURIER), taken),
        layout,
        hosts_rule("average"),
        0.0,
        True,
        news.append,
    )
    try:
        listening = news[0]
        path = folder / f"courier{host}"
        path.with_suffix(".new").write_text(json.dumps([listening.address, listening.port, listening.token]))
        path.with_suffix(".new").rename(path)
        paths = [folder / f"courier{i}" for i in range(hosts)]
        until = time.monotonic() + START_S
        while not all(each.exists() for each in paths) and time.monotonic() < until:
            time.sleep(0.01)
        courier.handle_order(between.Peers({i: tuple(json.loads(each.read_text())) for i, each in enumerate(paths)}))
        courier.handle_order(between.Made())
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            courier.step([])
    finally:
        courier.close()
        center.close()
        centers.unlink()
    (folder / f"exchanges{host}.json").write_text(json.dumps({"calls": taken, "count": len(taken)}))


if __name__ == "__main__":
    main()
