"""How long the coordinator takes for collective calls of many members, without sockets and processes.

    python benchmarks/rendezvous.py [--members 8 64 1024] [--rounds 15] [--out FOLDER]

All members say hello, and then make the same calls one after the other, as encoded requests; a time is that from the
first request to the last answer. The reference is the same number of requests that wait for nobody (reports).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import report

from platoon_base.channels.base import Received
from platoon_base.channels.server import ControlServer
from platoon_base.coordination import messages as msg
from platoon_base.coordination import roster
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.encoding import encode

GOAL_S = 0.050  # a barrier of 1,024 members
CALLS = {
    "report": msg.Report(metrics={"loss": 0.5}),
    "barrier": msg.Barrier(name="b", timeout_s=60),
    "sum": msg.Sum(name="s", pairs={f"metric {i}": (1.0, 2.0) for i in range(4)}, timeout_s=60),
    "gather": msg.Gather(name="g", value=b"x" * 64, timeout_s=60),
}


class State:
    """In place of what a job has in shared memory."""

    stopping, stop_reason, num_live = False, "", (0, 0)


class Members:
    """A coordinator and its members, of which eight each are on a host."""

    def __init__(self, number: int) -> None:
        self.number, self.answers = number, 0
        self._server = ControlServer(Coordinator(number, 0), State(), self._take)
        hellos = (msg.Hello(protocol=msg.PROTOCOL, pid=rank + 2, host=f"h{rank // 8}", device="cpu", rank=rank)
                  for rank in range(number))  # fmt: skip
        self.hello_s = self.seconds(map(encode, hellos))

    def _take(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        self.answers += 1

    def seconds(self, requests: Iterator[bytes]) -> float:
        """Send one request of each member, and return how long it took until all were answered."""
        self.answers = 0
        received = [Received(b"p%d" % rank, b"00000001", data) for rank, data in enumerate(requests)]
        began = time.perf_counter()
        for each in received:
            self._server.receive(each, 0.0)
        took = time.perf_counter() - began
        assert self.answers == self.number
        return took


def measure(number: int, rounds: int) -> dict[str, float]:
    """Return the seconds of each kind of call, medians over the rounds, whose kinds take turns."""
    members = Members(number)
    taken: dict[str, list[float]] = {kind: [] for kind in CALLS}
    for _ in range(rounds):
        for kind, call in CALLS.items():
            data = encode(call)
            taken[kind].append(members.seconds(data for _ in range(number)))
    return {"hello": members.hello_s, **{kind: report.median(seconds) for kind, seconds in taken.items()}}


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[8, 64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks, of 1,024 members]")
    args = parser.parse_args()
    roster.MAX_WORKERS = max(args.members)  # a job of one host has fewer
    found = {number: measure(number, args.rounds) for number in args.members}
    kinds = ["hello", *CALLS]
    rows = [[number, *(seconds[kind] * 1e3 for kind in kinds)] for number, seconds in found.items()]
    report.table("All members, ms", ["members", *kinds], rows)
    rows = [[number, *(seconds[kind] / seconds["report"] for kind in kinds)] for number, seconds in found.items()]
    report.table("Times that of as many reports", ["members", *kinds], rows)
    goals = []
    if 1024 in found:
        goals = [report.goal("a barrier of 1,024 members, s", found[1024]["barrier"], GOAL_S, False)]
    if args.out or 1024 in found:
        report.save("rendezvous", {"seconds": found, "goals": goals}, args.out or report.FOLDER)


if __name__ == "__main__":
    main()
