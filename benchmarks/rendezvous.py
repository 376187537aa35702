"""How long the coordinator takes for collective calls of many members, without sockets and processes.

All members say hello, and then make the same calls one after the other, as encoded requests; a time is that from the
first request to the last answer. The reference is the same number of requests that wait for nobody (reports).

    python benchmarks/rendezvous.py [--members 8 64 1024] [--rounds 15]
"""

from types import SimpleNamespace

import harness

from platoon_base.channels import Received
from platoon_base.channels.server import ControlServer
from platoon_base.coordination import messages as msg
from platoon_base.coordination import roster
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.encoding import encode

# In place of what a job has in shared memory.
STATE = SimpleNamespace(stopping=False, stop_reason="", num_live=(0, 0))
GOAL_S = 0.050  # a barrier of 1,024 members
CALLS = {
    "report": msg.Report(metrics={"loss": 0.5}),
    "barrier": msg.Barrier(name="b", timeout_s=60),
    "sum": msg.Sum(name="s", pairs={f"metric {i}": (1.0, 2.0) for i in range(4)}, timeout_s=60),
    "gather": msg.Gather(name="g", value=b"x" * 64, timeout_s=60),
}


class Members:
    def __init__(self, number):
        self.number, self.answers = number, 0
        self._server = ControlServer(Coordinator(number, 0), STATE, self._take)
        about = {"protocol": msg.PROTOCOL, "device": "cpu"}
        hellos = (msg.Hello(pid=rank + 2, host=f"h{rank // 8}", rank=rank, **about) for rank in range(number))
        self.hello_s = self.seconds(map(encode, hellos))

    def _take(self, peer, request_id, data):
        self.answers += 1

    def seconds(self, requests):
        """Send one request of each member, and return how long it took until all were answered."""
        self.answers = 0
        received = [Received(b"p%d" % rank, b"00000001", data) for rank, data in enumerate(requests)]
        took = harness.seconds(lambda: [self._server.receive(each, 0.0) for each in received])
        assert self.answers == self.number
        return took


def times_of(number, rounds):
    members = Members(number)
    requests = {kind: [encode(call)] * number for kind, call in CALLS.items()}
    found = harness.interleaved({kind: lambda r=each: members.seconds(r) for kind, each in requests.items()}, rounds)
    return {"hello": members.hello_s, **{kind: harness.median(times) for kind, times in found.items()}}


def measure():
    options = harness.options(__doc__, members=[8, 64, 256, 1024], rounds=15)
    roster.MAX_WORKERS = max(options.members)  # a job of one host has fewer
    found = {number: times_of(number, options.rounds) for number in options.members}
    rows = [{"members": number, **{kind: 1e3 * s for kind, s in of.items()}} for number, of in found.items()]
    harness.table("All members, ms", rows)
    rows = [{"members": number, **{kind: s / of["report"] for kind, s in of.items()}} for number, of in found.items()]
    harness.table("Times that of as many reports", rows)
    if 1024 in found:
        harness.goal("a barrier of 1,024 members, s", found[1024]["barrier"], GOAL_S, at_least=False)
    harness.save("rendezvous", {"seconds": found}, options)


if __name__ == "__main__":
    harness.main(measure)
