"""Control messages: every one survives the wire, and no bytes from outside do more than raise ProtocolError."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon_base import errors
from platoon_base.coordination import messages as msg
from platoon_base.coordination.encoding import decode_reply, decode_request, decode_value, encode, encode_value
from platoon_base.coordination.story import Entry
from platoon_base.errors import PlatoonError, ProtocolError
from platoon_base.multihost import messages as between
from platoon_base.sharding import Position
from platoon_base.system.environment import MAX_WORKERS

pytestmark = pytest.mark.base

EXAMPLES = settings(max_examples=300, deadline=None, derandomize=True)

REQUESTS = [
    msg.Hello(protocol=msg.PROTOCOL, pid=4711, host="node", device="cuda0"),
    msg.Hello(protocol=msg.PROTOCOL, pid=4711, host="node", device="cpu", rank=3),
    msg.InitCenter(specs=[("W", (2, 3), "float32"), ("", (), "float64")], rule="EASGD(alpha=0.5)"),
    msg.CenterReady(),
    msg.Sum(name="epoch 3", pairs={"loss": (1.5, 64.0), "error": (math.inf, 0.0)}, timeout_s=600.0),
    msg.Barrier(name="barrier", timeout_s=0.0),
    msg.Sum(name="states", timeout_s=1.0, vector=b"\0" * 48, shapes=[(2, 3), ()], skips_late=True),
    msg.Gather(name="votes", timeout_s=1.0, value=b"\0" * msg.MAX_VALUE_BYTES),
    msg.FormGroup(name="group", timeout_s=1.0, note=b"id"),
    msg.Meet(name="epoch", timeout_s=1.0, binds=True),
    msg.AgreeToStop(timeout_s=1.0),
    msg.ReleaseCenter(stage="drop", shares=True, timeout_s=1.0),
    msg.Report(metrics={"loss": 0.25, "epoch": 3, "best": "model é.npz"}),
    msg.StopVote(reason="patience", policy="all"),
    msg.Keep(name="best", value=encode_value({"loss": 0.25, "waited": 3})),
    msg.Same(name="the data", fingerprint="100 rows 1f00", remedy="Seed the split."),
    msg.Withdraw(),
    msg.TakeLock(),
    msg.FreeLock(),
    msg.Leave(),
    msg.Round(timeout_s=1.0),
    msg.RoundsMade(number=2**33, timeout_s=1.0),
    msg.Watch(protocol=msg.PROTOCOL),
    msg.AskStory(protocol=msg.PROTOCOL),
    msg.EndJob(protocol=msg.PROTOCOL, sent_at=3.25, grace_s=2.5),
    msg.UserRequest(req="next", info={"seen": [1, 2.5, "x", None, True, b"\0\1"]}),
]
REPLIES = [
    msg.Welcome(rank=3, size=4, local_rank=1, local_size=2, seed=2**40),
    msg.Welcome(
        rank=1,
        size=2,
        local_rank=1,
        local_size=2,
        seed=0,
        late=True,
        resume_at=Position(3, 20, 140),
        kept={"best": b"\0"},
    ),
    msg.CenterRole(create=True),
    msg.CenterRole(create=True, resume=True),
    msg.CenterRole(create=False),
    msg.Met(ranks=[0, 2], lost=[1]),
    msg.RoundReached(number=2**33, ranks=[0, 2], lost=[1]),
    msg.RoundsCompared(latest=2**33, behind=[2], ranks=[0, 2], lost=[1]),
    msg.Sums(pairs={"loss": (1.5, 64.0)}, ranks=[0, 2], lost=[1]),
    msg.Sums(pairs={}, ranks=[0], lost=[], stop="patience", vector=b"\1" * 8),
    msg.Gathered(values=[b"\0", b""], ranks=[0, 2], lost=[]),
    msg.AskAgain(seconds=1.5),
    msg.Done(),
    msg.LockTaken(taken=True),
    msg.UserReply(answer=["stop", 3, {"lr": 0.1}]),
    msg.UserReply(),
    msg.Seen(
        workers=[
            msg.SeenWorker(
                rank=1, phase=2, launched=True, device="cuda0", progress={"steps": 7, "limit": "patience 3/15"}
            )
        ],
        reported={"loss": 0.25, "best": "model é.npz"},
        stop="SIGINT",
        seconds=7.5,
        missed_checkpoints=1,
    ),
    msg.StoryReply(
        entries=[Entry(3.5, "rank", [0, 2], "joined", "lost", "killed by SIGKILL"), Entry(4.0, "job", [], "", "stops")]
    ),
    msg.Failure(kind="LayoutMismatchError", message="got ..."),
]


def name_of(message):
    return type(message).__name__


@pytest.mark.parametrize("request_", REQUESTS, ids=name_of)
def test_requests_survive_the_wire(request_):
    assert decode_request(encode(request_)) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=name_of)
def test_replies_survive_the_wire(reply):
    assert decode_reply(encode(reply)) == reply


def test_every_message_is_tried():
    assert {type(m) for m in REQUESTS} == set(msg.Request.__args__)
    assert {type(m) for m in REPLIES} == set(msg.Reply.__args__)


@given(pairs=st.dictionaries(st.text(max_size=20), st.tuples(st.floats(), st.floats()), max_size=5))
@EXAMPLES
def test_floats_keep_their_bits(pairs):
    decoded = decode_request(encode(msg.Sum(name="x", pairs=pairs, timeout_s=1.0)))
    np.testing.assert_equal(decoded.pairs, pairs)


@pytest.mark.parametrize("request_", REQUESTS, ids=name_of)
def test_a_request_is_no_reply(request_):
    with pytest.raises(ProtocolError, match="not a message of protocol"):
        decode_reply(encode(request_))


def decodes_or_is_refused(data):
    for decode, kinds in ((decode_request, msg.Request), (decode_reply, msg.Reply)):
        try:
            message = decode(data)
        except ProtocolError:
            continue
        assert type(message) in kinds.__args__


@EXAMPLES
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data):
    decodes_or_is_refused(data)


@EXAMPLES
@given(st.sampled_from(REQUESTS + REPLIES).map(encode), st.data())
def test_a_damaged_message_is_a_message_or_refused(encoded, data):
    damaged = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    decodes_or_is_refused(bytes(damaged))
    decodes_or_is_refused(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


NIL = b"\xc0"  # how MessagePack writes None; the last byte of a user's request without info


@pytest.mark.parametrize(
    "info",
    [
        b"\x81\x80\x01",  # a dict as the key of a dict
        b"\xc7\x0c\xff" + b"\xff" * 12,  # a time that no calendar has
        b"\xa1\xff",  # no UTF-8
        b"\x91" * 100_000,  # a list in a list in a list ...
        b"\xdd\xff\xff\xff\xff",  # a list of 4 billion elements, none of which follows
        b"\xc6\xff\xff\xff\xff",  # 4 GB of bytes, none of which follows
    ],
    ids=["key", "time", "text", "depth", "length", "bytes"],
)
def test_what_only_looks_like_data_is_refused(info):
    with pytest.raises(ProtocolError, match="not a message of protocol"):
        decode_request(encode(msg.UserRequest(req="x"))[: -len(NIL)] + info)


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (REQUESTS[0], "pid", "x"),
        (REQUESTS[0], "rank", 1.5),
        (REQUESTS[2], "specs", [("W", (2, 3))]),
        (REQUESTS[4], "pairs", {"loss": (1.0,)}),
        (REQUESTS[4], "timeout_s", None),
        (REQUESTS[6], "shapes", [(1.5,)]),
        (REQUESTS[6], "vector", b"\0" * (msg.MAX_VECTOR_BYTES + 1)),
        (REQUESTS[7], "value", b"\0" * (msg.MAX_VALUE_BYTES + 1)),
        (REQUESTS[8], "note", b"\0" * (msg.MAX_VALUE_BYTES + 1)),
        (REQUESTS[11], "stage", "again"),
        (REQUESTS[12], "metrics", {"loss": [1.0]}),
    ],
)
def test_a_field_of_another_type_is_refused(message, field, value):
    wrong = type(message)(**{**{f: getattr(message, f) for f in message.__struct_fields__}, field: value})
    with pytest.raises(ProtocolError, match=field):
        decode_request(encode(wrong))


class Unpicklable:
    pass


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "info",
    [Unpicklable(), np.zeros(3), print, 2**70, {"x": [Unpicklable()]}, 1j],
    ids=["object", "array", "function", "2**70", "nested object", "complex"],
)
def test_what_is_not_plain_data_cannot_be_sent(info):
    with pytest.raises(ProtocolError, match="numbers, strings, lists and dicts"):
        encode(msg.UserRequest(req="x", info=info))


def test_data_nested_too_deeply_cannot_be_sent():
    info = nested(100_000)
    with pytest.raises(ProtocolError, match="cannot encode UserRequest"):
        encode(msg.UserRequest(req="x", info=info))


def test_the_largest_message_passes_and_one_byte_more_does_not():
    room = msg.MAX_BYTES - len(encode(msg.UserRequest(req="x", info=b""))) - 3  # a longer length takes 3 bytes more
    largest = msg.UserRequest(req="x", info=b"\0" * room)
    encoded = encode(largest)
    assert len(encoded) == msg.MAX_BYTES
    assert decode_request(encoded) == largest
    with pytest.raises(ProtocolError, match=f"UserRequest message of {msg.MAX_BYTES + 1} bytes"):
        encode(msg.UserRequest(req="x", info=b"\0" * (room + 1)))
    with pytest.raises(ProtocolError, match=f"{msg.MAX_BYTES + 1} bytes, and the limit"):
        decode_request(encoded + b"\0")


def test_all_errors_can_be_named():
    named = {name for name in errors.__all__ if issubclass(getattr(errors, name), PlatoonError)}
    kinds = {type(msg.Failure(kind=name, message="").to_exception()).__name__ for name in errors.__all__}
    assert kinds == named


@pytest.mark.parametrize(
    "kind", ["", "Nonsense", "__builtins__", "__all__", "__name__", "annotations", "PlatoonWarning", "SystemExit"]
)
def test_a_failure_of_another_kind_is_a_protocol_error(kind):
    error = msg.Failure(kind=kind, message="text").to_exception()
    assert type(error) is ProtocolError
    assert str(error) == "text"


def test_the_answers_to_the_largest_collective_calls_of_a_full_job_fit_into_a_message():
    ranks = list(range(MAX_WORKERS))
    values = [b"\xff" * msg.MAX_VALUE_BYTES] * MAX_WORKERS
    encode(msg.Gathered(values=values, ranks=ranks, lost=ranks, stop="x" * 256))
    vector = b"\0" * msg.MAX_VECTOR_BYTES
    encode(msg.Sums(pairs={}, vector=vector, ranks=ranks, lost=ranks, stop="x" * 256))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(0.5), 0.5),
        (np.array(3), 3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.longdouble(1.5), 1.5),
        ([np.float32(1), {"a": np.array(2.5), np.int64(3): np.bytes_(b"x")}], [1.0, {"a": 2.5, 3: b"x"}]),
    ],
    ids=range(6),
)
def test_a_scalar_of_numpy_is_sent_as_the_number(value, plain):
    sent = decode_value(encode_value(value))
    assert sent == plain
    assert type(sent) is type(plain)


@pytest.mark.parametrize("value", [np.zeros(3), np.complex64(1), np.ma.masked, np.datetime64("2020-01-01")])
def test_what_is_no_plain_value_is_refused(value):
    with pytest.raises(ProtocolError, match="cannot encode"):
        encode_value([value])


# Messages between launchers.


def forwarded(size):
    return between.Forwarded(b"peer", b"12345678", bytes(size))


@pytest.mark.parametrize("sizes", [[], [1], [1, 2, 3], [1 << 22, 1 << 22], [1 << 21] * 5, [1 << 22, 1, 1 << 22, 1]])
def test_batches_keep_the_order_and_fit_into_a_message(sizes):
    items = [forwarded(size) for size in sizes]
    batches = list(between.batches(items))
    assert [item for batch in batches for item in batch] == items
    for batch in batches:
        assert len(batch) == 1 or sum(len(item.data) for item in batch) <= 1 << 22
        assert len(between.encode(between.Replies(batch))) < 1 << 23


@pytest.mark.parametrize("decode", [between.decode_up, between.decode_down])
@pytest.mark.parametrize("data", [b"", b"\xff", b"\x80", between.encode(between.Refused("x"))[:-1]])
def test_bytes_that_are_no_message_are_refused(decode, data):
    with pytest.raises(ProtocolError, match="install one version"):
        decode(data)


def test_messages_survive_the_wire():
    message = between.Requests([forwarded(3)], between.Rows(1.5, [3], b"row", b"\1"))
    assert between.decode_up(between.encode(message)) == message
