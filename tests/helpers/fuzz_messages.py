"""What arrives at a controller, made from any bytes: what tests/faults/test_fuzz.py and atheris fuzz.

An input is a sequence of steps: requests of several peers, some not framed, repeated, as large as a message may be or
larger, or sent by a crowd; workers that end and come again; time that passes. `one_input` lets a server with a
fresh coordinator take them in, and raises an AssertionError if anything but well-formed answers to questions comes out.

To look for more by hand, with Python 3.12 (there is no atheris for some others)::

    python3.12 -m venv /tmp/fuzzenv
    /tmp/fuzzenv/bin/pip install atheris msgspec numpy pyzmq posix_ipc psutil
    mkdir /tmp/found
    PYTHONPATH=. nice /tmp/fuzzenv/bin/python tests/helpers/fuzz_messages.py /tmp/found tests/corpus/messages \
        -max_total_time=720 -max_len=4096 -timeout=10 -rss_limit_mb=2048 -artifact_prefix=/tmp/

Whatever it finds is written to /tmp/crash-*, /tmp/timeout-* or /tmp/oom-*; the same command with such a file instead of
the folders repeats it. Once the fault is repaired the file belongs into tests/corpus/messages. To add what reached new
code::

    PYTHONPATH=. /tmp/fuzzenv/bin/python tests/helpers/fuzz_messages.py -merge=1 -use_counters=0 \
        tests/corpus/messages /tmp/found

and ``tests/helpers/fuzz_messages.py --seeds FOLDER`` (with any Python) writes the seeds: each request there is, and
short conversations. The Python of platoon_base is watched for coverage. MessagePack is decoded in C (msgspec), which is
not: what happens there shows in the messages that come out, and mutations of decoded messages get past it.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import logging
import math
import random
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

if __name__ == "__main__" and "--seeds" not in sys.argv:
    import atheris

    watched_imports = atheris.instrument_imports(include=["platoon_base"])
else:
    watched_imports = contextlib.nullcontext()

with watched_imports:
    from platoon_base.channels import Received
    from platoon_base.channels.client import ControlClient
    from platoon_base.channels.server import ControlServer
    from platoon_base.coordination import messages as msg
    from platoon_base.coordination.coordinator import Coordinator
    from platoon_base.coordination.encoding import decode_reply, decode_request, encode
    from platoon_base.coordination.roster import Roster
    from platoon_base.errors import ConfigurationError, PlatoonError, ProtocolError
    from platoon_base.sharding import Position
    from platoon_base.shm.job_state import JobState
    from platoon_base.system.environment import MAX_WORKERS

CORPUS = Path(__file__).parents[1] / "corpus" / "messages"
REQUESTS = msg.Request.__args__
REPLIES = msg.Reply.__args__
SIZE = 2  # workers that the job was launched with
MAX_MESSAGES = 600  # of one input, so that it takes a fraction of a second
MAX_PADDED = 2
HUGE = (
    (msg.Hello, "type"), (msg.InitCenter, "rule"), (msg.CenterReady, "error"), (msg.Sum, "name"),
    (msg.StopVote, "reason"), (msg.UserRequest, "req"), (msg.UserRequest, "info"),
)  # fmt: skip
AT_LAST = b"at last"  # the id of the last requests of all


class Event(enum.IntEnum):
    """The first byte of a step, modulo 16; the second one is the peer, the rank or the number of seconds.

    Requests go on with 2 bytes for the length of the body, little-endian, and the body.
    """

    ASK = 0
    UNFRAMED = 1  # the channel found no request id
    SAME_ID = 2  # a request with the id of this peer's latest one
    PADDED = 3  # one byte follows the body; the last byte of the body is repeated up to MAX_BYTES + 8 - that
    CROWD = 4  # one byte follows the body: 255, or that modulo 16, peers send the same
    TICK = 5
    LEFT = 6
    LOST = 7
    AGAIN = 8


class Step(NamedTuple):
    event: Event
    number: int  # of the peer, the rank or the seconds
    body: bytes = b""
    argument: int = 0


def cut(data: bytes) -> list[Step]:
    """Read bytes as steps; any bytes are some."""
    steps = []
    position = 0
    while position < len(data):
        event = Event(data[position] % 16) if data[position] % 16 in set(Event) else Event.ASK
        number = data[position + 1] if position + 1 < len(data) else 0
        position += 2
        if event >= Event.TICK:
            steps.append(Step(event, number))
            continue
        length = int.from_bytes(data[position : position + 2], "little")
        body = data[position + 2 : position + 2 + length]
        position += 2 + length
        argument = 0
        if event in (Event.PADDED, Event.CROWD):
            argument = data[position] if position < len(data) else 0
            position += 1
        steps.append(Step(event, number, body, argument))
    return steps


def join(steps: list[Step]) -> bytes:
    """Write steps as the bytes that `cut` reads."""
    parts = []
    for step in steps:
        parts.append(bytes((step.event, step.number)))
        if step.event < Event.TICK:
            parts.append(len(step.body).to_bytes(2, "little") + step.body)
        if step.event in (Event.PADDED, Event.CROWD):
            parts.append(bytes((step.argument,)))
    return b"".join(parts)


# What is looked for.


class Job:
    """A server with a fresh coordinator, and the books of what was asked and answered."""

    def __init__(self) -> None:
        self.buffer = bytearray(JobState.size_bytes(MAX_WORKERS))
        self.job_state = JobState(self.buffer, MAX_WORKERS, create=True)
        self.before = bytes(self.buffer)
        self.coordinator = Coordinator(SIZE)
        self.roster = self.coordinator.roster
        self.server = ControlServer(self.coordinator, self.job_state, self.answered, handler)
        self.now = 0.0
        self.asked = 0
        self.padded = 0
        self.metrics = 0
        self.waiting: collections.Counter[tuple[bytes, bytes]] = collections.Counter()
        self.ids: dict[bytes, bytes] = {}
        self.at_last: dict[bytes, msg.Reply] = {}  # the answers to the last requests of all
        self.taken: set[int] = set()  # the ranks in the job before the latest hello
        self.reasons: set[str] = set()  # of the votes of those in the job

    def answered(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        assert self.waiting[peer, request_id], "an answer that nobody waits for, or a second one"
        self.waiting[peer, request_id] -= 1
        reply = decode_reply(data)
        if request_id == AT_LAST:
            self.at_last[peer] = reply
        if isinstance(reply, msg.Welcome):
            assert 0 <= reply.rank < min(reply.size, MAX_WORKERS)
            assert reply.rank not in self.taken, "a rank that two have"
            assert 0 <= reply.local_rank < reply.local_size <= MAX_WORKERS
        elif isinstance(reply, msg.CollectiveReply):
            assert set(reply.ranks) | set(reply.lost) <= set(self.roster)
            assert reply.ranks == sorted(set(reply.ranks)), "ranks out of order"
            gone = [rank for rank in reply.ranks if self.roster[rank].phase.gone]
            assert not gone, "an answer with the part of one that is gone"
            assert not isinstance(reply, msg.Gathered) or len(reply.values) == len(reply.ranks)
        elif isinstance(reply, msg.Failure):
            assert type(reply.to_exception()).__name__ == reply.kind, "a failure of a kind that there is not"

    def take(self, step: Step) -> None:
        if step.event >= Event.TICK:
            self.happen(step)
            return
        peers = [b"peer %d" % step.number]
        body = step.body
        if step.event is Event.PADDED and self.padded < MAX_PADDED:
            self.padded += 1
            body += (body[-1:] or b"A") * (msg.MAX_BYTES + 8 - step.argument - len(body))
        elif step.event is Event.CROWD:
            # Several hundred workers take a while, and show little that a dozen do not.
            count = step.argument if step.argument == 255 else step.argument % 16
            peers = [b"peer %d" % (step.number + n) for n in range(count)]
        for peer in peers:
            if self.asked == MAX_MESSAGES:
                return
            if step.event is Event.UNFRAMED:
                self.ask(peer, b"", body)
            elif step.event is Event.SAME_ID and peer in self.ids:
                self.ask(peer, self.ids[peer], body)
            else:
                self.ask(peer, b"%08d" % self.asked, body)

    def ask(self, peer: bytes, request_id: bytes, body: bytes) -> None:
        self.asked += 1
        self.ids[peer] = request_id
        self.waiting[peer, request_id] += 1
        with contextlib.suppress(ProtocolError):
            self.expect(peer, decode_request(body))
        self.server.receive(Received(peer, request_id, body), self.now)

    def expect(self, peer: bytes, request: msg.Request) -> None:
        present = [participant for participant in self.roster.values() if participant.phase.present]
        if isinstance(request, msg.Hello):
            self.taken = {participant.rank for participant in present}
        elif isinstance(request, msg.StopVote) and any(participant.peer == peer for participant in present):
            self.reasons.add(request.reason)
        elif isinstance(request, msg.Report):
            self.metrics += len(request.metrics)

    def happen(self, step: Step) -> None:
        if step.event is Event.TICK:
            self.now += step.number
            self.server.carry_out(self.coordinator.tick(self.now))
            deadline = self.coordinator.next_deadline
            assert deadline is None or deadline > self.now, "a wait that no tick ends"
        elif step.event is Event.AGAIN:
            participant = self.roster.get(step.number)
            if participant is not None and participant.phase.gone:
                self.coordinator.readmit(step.number, Position())
        else:
            self.server.carry_out(self.coordinator.worker_ended(step.number, step.event is Event.LOST))

    def check(self) -> None:
        """Check what holds at any moment."""
        coordinator = self.coordinator
        assert set(self.roster) <= set(range(MAX_WORKERS))
        assert all(rank == participant.rank for rank, participant in self.roster.items())
        peers = [participant.peer for participant in self.roster.values() if participant.phase.present]
        assert len(set(peers)) == len(peers), "a connection that is two workers"
        assert self.job_state.stopping == (coordinator.stop_reason is not None)
        if self.job_state.stopping:
            assert any(reason.startswith(coordinator.stop_reason) for reason in self.reasons), "nobody voted for this"
        for name, table in tables(coordinator):
            bound = self.metrics if name == "reported" else max(MAX_WORKERS, self.asked)
            assert len(table) <= bound, f"{name} grows"

    def finish(self) -> None:
        """Check that the job can go on whatever has happened, and that nothing is left once all have ended."""
        coordinator = self.coordinator
        self.server.carry_out(coordinator.tick(math.inf))
        assert coordinator.next_deadline is None, "a wait that no tick ends"
        present = [participant for participant in self.roster.values() if participant.phase.present]
        if all(self.roster[rank].phase.present for rank in self.roster.awaited):
            meet = {participant.peer for participant in present if participant.phase.awaited}
            for peer in meet:
                self.ask(peer, AT_LAST, total("the end"))
            assert all(isinstance(self.at_last[peer], msg.Sums) for peer in meet), "a sum that was not made"
        for participant in present:
            self.ask(participant.peer, AT_LAST, encode(msg.Leave()))
            assert isinstance(self.at_last[participant.peer], msg.Done), "one in the job that cannot leave it"
        for rank in list(self.roster):
            self.happen(Step(Event.LOST, rank))
        assert not self.roster.awaited
        self.check()
        fresh = JobState(after := bytearray(self.before), MAX_WORKERS, create=False)
        if self.job_state.stopping:
            fresh.stop(coordinator.stop_reason)
        assert self.buffer == after, "parts of the job's state that no request may change"


def tables(machine: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tables of the coordinator and of its state machines, by name."""
    for name, value in vars(machine).items():
        if isinstance(value, (dict, set, list, tuple)):
            yield name, value
        elif "coordination" in type(value).__module__ and not isinstance(value, (Roster, msg.Message)):
            yield from tables(value)


def handler(req: str, rank: int, info: Any) -> Any:
    """Answer as a user's controller may: with the info, with what cannot be sent, or not at all."""
    if req.startswith("fail"):
        raise ConfigurationError(req)
    if req.startswith("raise"):
        raise ValueError(req)
    return object() if req.startswith("object") else info


class Answering:
    """A channel on which every request gets the same answer."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def request(self, data: bytes, timeout_s: float) -> bytes:
        return self._answer

    def close(self) -> None:
        pass


def decode_and_encode(data: bytes) -> None:
    """Check that bytes are a message, which survives the wire bit for bit, or are refused with a ProtocolError."""
    for decode, kinds in ((decode_request, REQUESTS), (decode_reply, REPLIES)):
        try:
            message = decode(data)
        except ProtocolError:
            continue
        assert type(message) in kinds
        try:
            encoded = encode(message)
        except ProtocolError as exc:
            # What was a byte as a whole number may be 9 as a float; and what was nested just not too deeply may be now.
            if len(data) > msg.MAX_BYTES // 10 or isinstance(exc.__cause__, RecursionError):
                continue
            raise
        again = decode(encoded)
        assert type(again) is type(message)
        # Equal, but for NaN, which equals nothing.
        assert encode(again) == encoded


def one_input(data: bytes) -> None:
    """Take in what the bytes stand for; anything that must not happen is an exception."""
    decode_and_encode(data)
    with contextlib.suppress(PlatoonError):
        ControlClient(Answering(data), rank=0).ask(msg.Leave(), msg.Done, 1.0)
    job = Job()
    for step in cut(data):
        decode_and_encode(step.body)
        job.take(step)
        job.check()
    job.finish()


# What to begin with.


def example(kind: Any) -> Any:
    """Return a plain value of a type that `msgspec.inspect` describes."""
    info = msgspec.inspect
    if isinstance(kind, info.StructType):
        return kind.cls(**{f.name: example(f.type) for f in kind.fields})
    if isinstance(kind, info.NamedTupleType):
        return [example(f.type) for f in kind.fields]
    if isinstance(kind, info.TupleType):
        return tuple(map(example, kind.item_types))
    if isinstance(kind, (info.VarTupleType, info.ListType)):
        return [example(kind.item_type)]
    if isinstance(kind, info.DictType):
        return {example(kind.key_type): example(kind.value_type)}
    if isinstance(kind, info.UnionType):
        return example(kind.types[0])
    if isinstance(kind, info.LiteralType):
        return kind.values[0]
    plain = {info.IntType: 1, info.FloatType: 1.0, info.StrType: "a", info.BytesType: b"\1", info.BoolType: True}
    return plain.get(type(kind))


def request(kind: type, **fields: Any) -> bytes:
    """Encode an example of a request with some of its fields as given."""
    return encode(msgspec.structs.replace(example(msgspec.inspect.type_info(kind)), **fields))


def hello(rank: int | None = None) -> bytes:
    return request(msg.Hello, protocol=msg.PROTOCOL, rank=rank)


def total(name: str = "epoch", **fields: Any) -> bytes:
    return request(msg.Sum, name=name, **{"vector": b"", "shapes": [], "skips_late": False, "timeout_s": 5.0, **fields})


def release(shares: bool = True) -> bytes:
    return request(msg.ReleaseCenter, stage="drop", shares=shares, timeout_s=5.0)


def with_info(info: bytes) -> bytes:
    """Encode a user's request whose info is these bytes."""
    return encode(msg.UserRequest(req="x"))[:-1] + info


def huge(kind: type, field: str, length: int = msg.MAX_BYTES, **fields: Any) -> Step:
    """Ask with a text that makes the message as large as it may be; a peer 0 does."""
    plain = msgspec.msgpack.decode(request(kind, **fields))
    plain.pop(field)
    start = msgspec.msgpack.encode({**plain, field: 0})[:-1] + b"\xdb"
    room = length - len(start) - 4
    return Step(Event.PADDED, 0, start + room.to_bytes(4, "big") + b"A", msg.MAX_BYTES + 8 - length)


def seeds() -> dict[str, bytes]:
    """Return each request that there is, from a stranger and from a member, and short conversations, by name."""
    joined = [Step(Event.ASK, 0, hello(0)), Step(Event.ASK, 1, hello(1))]

    def talk(*asked: tuple[int, bytes], then: tuple[Step, ...] = ()) -> bytes:
        return join([*joined, *(Step(Event.ASK, peer, body) for peer, body in asked), *then])

    init, ready, leave = request(msg.InitCenter), request(msg.CenterReady, error=""), encode(msg.Leave())
    arrays = total(vector=b"\0" * 16, shapes=[(2,)])
    found = {f"one-{kind.__name__}": request(kind) for kind in REQUESTS + REPLIES}
    found.update({f"from-member-{kind.__name__}": talk((0, request(kind))) for kind in REQUESTS})
    found.update({f"from-stranger-{kind.__name__}": talk((7, request(kind))) for kind in REQUESTS})
    found.update({f"twice-{kind.__name__}": talk((0, request(kind)), (1, request(kind))) for kind in REQUESTS})
    found["whole"] = talk(
        (0, init), (1, init), (0, ready), (0, total()), (1, total()), (0, arrays), (1, arrays),
        (0, request(msg.StopVote, policy="any")), (0, leave), (1, leave),
    )  # fmt: skip
    found["creator-fails"] = talk((0, init), (1, init), (0, request(msg.CenterReady)), (1, ready))
    found["creator-dies"] = talk((0, init), (1, init), then=(Step(Event.LOST, 0), Step(Event.ASK, 1, ready)))
    found["other-model"] = talk((0, init), (0, ready), (1, request(msg.InitCenter, specs=[("W", (2, 3), "float32")])))
    found["other-rule"] = talk((0, init), (0, ready), (1, request(msg.InitCenter, rule="ASGD")))
    found["release"] = talk((0, init), (0, ready), *((n, release()) for n in (0, 1)), (1, init))
    found["release-late"] = talk((0, init), (0, ready), (2, hello()), (2, release(shares=False)), (0, release()))
    for kind in (kind for kind in REQUESTS if issubclass(kind, msg.CollectiveCall)):
        one, other = request(kind, timeout_s=5.0), total(timeout_s=9.0)
        found[f"all-{kind.__name__}"] = talk((1, one), (2, hello()), (2, one), (0, one), (2, one))
        found[f"dies-in-{kind.__name__}"] = talk((1, one), then=(Step(Event.LOST, 1), Step(Event.ASK, 0, one)))
        found[f"withdraws-from-{kind.__name__}"] = talk((0, one), (0, encode(msg.Withdraw())), (0, other), (1, other))
        found[f"same-name-as-{kind.__name__}"] = talk((0, one), (1, total(name="a")))
    found["shapes-differ"] = talk((0, arrays), (1, total(shapes=[(2, 3), ()])))
    found["cross-wait"] = talk((0, total("a")), (1, total("b")))
    found["late"] = talk((2, hello()), (2, total(skips_late=True, vector=b"\0" * 8)), (0, total()), (1, total()))
    found["time-out"] = talk((0, total()), then=(Step(Event.TICK, 9), Step(Event.ASK, 1, total())))
    found["dies-waiting"] = talk((0, total()), then=(Step(Event.LOST, 0), Step(Event.ASK, 1, total())))
    found["comes-again"] = talk(
        (0, total()), then=(Step(Event.LOST, 0), Step(Event.AGAIN, 0), Step(Event.ASK, 9, hello(0)))
    )
    found["rank-taken"] = talk((7, hello(0)), (7, hello(9)), (0, hello(1)))
    found["stranger-votes"] = talk((7, request(msg.StopVote, policy="any")), (0, request(msg.StopVote, policy="any")))
    found["all-vote"] = talk(*((n, request(msg.StopVote, policy="all")) for n in (0, 1)))
    found["leader-votes"] = talk(*((n, request(msg.StopVote, policy="leader")) for n in (1, 0)))
    for word in ("fail", "raise", "object", "platoon-x"):
        found[f"user-{word}"] = talk((0, request(msg.UserRequest, req=word)))
    found["crowd"] = join([Step(Event.CROWD, 0, hello(), 15), Step(Event.CROWD, 9, leave, 9)])
    found["full"] = join([Step(Event.CROWD, 0, hello(), 255), Step(Event.CROWD, 0, total(skips_late=True), 9)])
    found["unframed"] = join([*joined, Step(Event.UNFRAMED, 0, leave), Step(Event.SAME_ID, 0, leave)])
    for kind, name in HUGE:
        fields = {"policy": "any"} if kind is msg.StopVote else {}
        found[f"huge-{kind.__name__}-{name}"] = join([*joined, huge(kind, name, **fields), Step(Event.ASK, 1, init)])
    found["huge-Hello"] = join([huge(msg.Hello, "host", protocol=msg.PROTOCOL, rank=0), *joined])
    found["too-large"] = join([*joined, huge(msg.UserRequest, "req", msg.MAX_BYTES + 1), Step(Event.ASK, 0, leave)])
    infos = {"depth": b"\x91" * 3000, "key": b"\x81\x80\x01", "ext": b"\xd4\x05a", "time": b"\xd6\xff\0\0\0\1"}
    infos |= {
        "long-time": b"\xc7\x0c\xff" + (999_999_999).to_bytes(4, "big") + (253_402_300_799).to_bytes(8, "big"),
        "list": b"\xdd\xff\xff\xff\xff",
        "bytes": b"\xc6\xff\xff\xff\xff",
        "nan": b"\xcb\x7f\xf8\0\0\0\0\0\1",
    }
    found.update({f"info-{name}": talk((0, with_info(info))) for name, info in infos.items()})
    return found


# How to go on.

JUNK = [
    None, True, 0, -1, 3, 255, 256, 2**31, 2**63, 2**64 - 1, -(2**63), 0.0, -0.5, 1e308, math.inf, -math.inf, math.nan,
    "", "a", "any", "all", "leader", "host", "\0", "\U0001f600", "x" * 300, b"", b"1234567", b"\0" * 8, b"\0" * 2049,
    [], [0], [[2, 3]], [["W", [2, 3], "float32"]], [[]], [2**63] * 300, {}, {"a": [1.0, 1.0]}, {"a": [math.inf, -1]},
    {"": 1}, {1: 2}, msgspec.msgpack.Ext(5, b"x"),
]  # fmt: skip


def changed_field(body: bytes, rng: random.Random) -> bytes:
    """Give a message's field another value, perhaps of another type, or take it away, or add one."""
    try:
        fields = dict(msgspec.msgpack.decode(body))
        name = rng.choice(sorted(fields))
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError, RecursionError):
        return body
    what = rng.randrange(8)
    if what == 0:
        del fields[name]
    elif what == 1:
        fields[name] = [fields[name]]
    elif what == 2:
        fields["type"] = msgspec.inspect.type_info(rng.choice(REQUESTS + REPLIES)).tag
    elif what == 3:
        fields[rng.choice(["skips_late", "binds", "shares", "stage", "rank", "note", "unknown"])] = rng.choice(JUNK)
    elif what == 4 and isinstance(fields[name], int):
        fields[name] = max(-(2**63), min(2**64 - 1, fields[name] + rng.choice([-1, 1, 256])))
    else:
        fields[name] = rng.choice(JUNK)
    try:
        return msgspec.msgpack.encode(fields)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return body


def changed_bytes(body: bytes, rng: random.Random) -> bytes:
    """Cut a message off, extend it, flip bits of it or swap its halves."""
    where = rng.randrange(len(body) + 1)
    what = rng.randrange(4)
    if what == 0:
        return body[:where]
    if what == 1:
        return body + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
    if what == 2 and where < len(body):
        return body[:where] + bytes([body[where] ^ 1 << rng.randrange(8)]) + body[where + 1 :]
    return body[where:] + body[:where]


def mutate(steps: list[Step], rng: random.Random) -> list[Step]:
    """Change a step or two of a conversation."""
    steps = list(steps)
    for _ in range(rng.randrange(1, 4)):
        where = rng.randrange(len(steps) + 1)
        what = rng.randrange(8)
        if what == 0 or where == len(steps):
            steps.insert(where, Step(Event.ASK, rng.randrange(4), request(rng.choice(REQUESTS))))
            continue
        if what == 1:
            del steps[where]
        elif what == 2:
            steps.insert(rng.randrange(len(steps) + 1), steps[where])
        elif what == 3:
            steps.insert(where, Step(rng.choice(list(Event)[Event.TICK :]), rng.randrange(8)))
        elif what == 4:
            steps[where] = steps[where]._replace(number=rng.randrange(4))
        elif what == 5 and steps[where].event < Event.TICK:
            steps[where] = steps[where]._replace(
                event=Event(rng.randrange(Event.TICK)), argument=rng.randrange(256) if rng.randrange(4) else 72
            )
        else:
            change = rng.choice([changed_field, changed_field, changed_bytes])
            steps[where] = steps[where]._replace(body=change(steps[where].body, rng)[: 2**16 - 1])
    return steps


# By hand.


class _Formatting(logging.Handler):
    """Makes every line that the library logs, and throws it away."""

    def emit(self, record: logging.LogRecord) -> None:
        record.getMessage()


def main(arguments: list[str]) -> None:
    if "--seeds" in arguments:
        folder = Path(arguments[-1])
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in seeds().items():
            (folder / name).write_bytes(data)
        return

    def mutated(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.randrange(3) == 0:
            return atheris.Mutate(data, max_size)
        return join(mutate(cut(data), rng))[:max_size]

    log = logging.getLogger("platoon_base")
    log.handlers, log.propagate = [_Formatting()], False
    log.setLevel(logging.DEBUG)
    # To merge, libFuzzer has a shell start this program again.
    program = f"{shlex.quote(sys.executable)} {shlex.quote(arguments[0])}"
    atheris.Setup([program, *arguments[1:]], one_input, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
