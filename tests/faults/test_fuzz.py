"""Whatever arrives, the controller lives: what fuzzing has kept, mutated conversations, the faults found."""

import ast
import contextlib
import importlib.util
import math
import traceback
from pathlib import Path

import pytest
from asking import require_failure
from fuzz_messages import (
    CORPUS,
    HUGE,
    REPLIES,
    REQUESTS,
    Event,
    Step,
    cut,
    hello,
    huge,
    join,
    mutate,
    one_input,
    seeds,
    total,
)
from fuzz_messages import request as encoded
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon_base.channels import Received
from platoon_base.channels.server import ControlServer
from platoon_base.coordination import messages as msg
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.encoding import decode_reply, decode_request, encode
from platoon_base.errors import ProtocolError
from platoon_base.shm.job_state import JobState
from platoon_base.system.environment import MAX_WORKERS

pytestmark = pytest.mark.base

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True)


def survive(inputs):
    """Take in all of several inputs, and name those that fail."""
    failed = {}
    for name, data in inputs.items():
        try:
            one_input(data)
        except Exception:
            failed[name] = traceback.format_exc(limit=-3)
    assert not failed, "\n\n".join(f"{name}:\n{trace}" for name, trace in failed.items())


# What arrives.


@pytest.mark.promise
def test_the_corpus_does_no_harm():
    """See fuzz_messages.py for where it comes from."""
    files = sorted(CORPUS.iterdir())
    assert len(files) > 50
    survive({path.name: path.read_bytes() for path in files})


def messages_in(data):
    """Name the kinds of all valid messages of an input: one that it is itself, or those of its steps."""
    found = set()
    for body in (data, *(step.body for step in cut(data))):
        for decode in (decode_request, decode_reply):
            with contextlib.suppress(ProtocolError):
                found.add(type(decode(body)))
    return found


def test_every_message_is_in_the_corpus():
    assert set().union(*(messages_in(path.read_bytes()) for path in CORPUS.iterdir())) == {*REQUESTS, *REPLIES}


def test_each_request_and_short_conversations_do_no_harm():
    """Of the messages there are now, whatever the corpus was made with."""
    conversations = seeds()
    assert {f"from-member-{kind.__name__}" for kind in REQUESTS} < set(conversations)
    survive(conversations)


CONVERSATIONS = [cut(data) for name, data in sorted(seeds().items()) if not name.startswith(("one-", "full"))]


@EXAMPLES
@given(st.sampled_from(CONVERSATIONS), st.integers(1, 6), st.randoms(use_true_random=False))
def test_a_mutated_conversation_does_no_harm(steps, rounds, rng):
    """Cut off, extended, swapped, replayed, from another peer, out of order, with fields of other types."""
    for _ in range(rounds):
        steps = mutate(steps, rng)
    one_input(join(steps))


@EXAMPLES
@given(st.binary(max_size=300))
def test_any_bytes_do_no_harm(data):
    one_input(data)
    one_input(join([Step(Event.ASK, 0, hello(0)), Step(Event.ASK, 0, data)]))


# What has done harm.


class Controller:
    """What decides in a controller, with two workers in the job."""

    def __init__(self):
        self.answers = []
        job_state = JobState(bytearray(JobState.size_bytes(MAX_WORKERS)), MAX_WORKERS, create=True)
        self.coordinator = Coordinator(2)
        self.server = ControlServer(self.coordinator, job_state, lambda peer, request_id, data: self.note(peer, data))
        for rank in (0, 1):
            assert isinstance(self.ask(rank, hello(rank)), msg.Welcome)

    def note(self, peer, data):
        self.answers.append((int(peer), decode_reply(data)))

    def ask(self, peer, data, now=0.0):
        """Send a request; return the answer to it, or None."""
        self.answers.clear()
        self.server.receive(Received(b"%d" % peer, b"id", data), now)
        return dict(self.answers).get(peer)

    def require_a_sum(self):
        assert self.ask(0, total("after")) is None
        assert isinstance(self.ask(1, total("after")), msg.Sums)
        assert [type(reply) for _, reply in self.answers] == [msg.Sums] * 2


@pytest.fixture
def controller():
    return Controller()


def whole(step):
    """Return the message that a padded step stands for."""
    return step.body + step.body[-1:] * (msg.MAX_BYTES + 8 - step.argument - len(step.body))


@pytest.mark.parametrize("peer", [0, 7])
def test_a_message_that_its_refusal_would_quote_is_refused(controller, peer):
    """The name of no message, as long as a message may be: quoting it, the answer was too large to be sent."""
    body = whole(huge(msg.Hello, "type"))
    assert len(body) == msg.MAX_BYTES
    reply = controller.ask(peer, body)
    require_failure(reply, "ProtocolError", "not a message of protocol", "AAA")
    assert len(reply.message) < 2000
    controller.require_a_sum()


@pytest.mark.parametrize(("kind", "field"), HUGE, ids=[f"{kind.__name__}-{field}" for kind, field in HUGE])
def test_texts_as_long_as_a_message_are_answered(controller, kind, field):
    if not issubclass(kind, msg.CollectiveCall):
        assert controller.ask(0, whole(huge(kind, field))) is not None
        controller.require_a_sum()


def test_a_late_joiner_that_gives_half_a_number_is_refused(controller):
    """Its vector was taken apart before its length was looked at."""
    assert isinstance(controller.ask(7, hello()), msg.Welcome)
    reply = controller.ask(7, total(skips_late=True, vector=b"1234567"))
    require_failure(reply, "ProtocolError", "vector of 7 bytes")
    assert isinstance(controller.ask(7, total(skips_late=True, vector=b"\0" * 8)), msg.Sums)
    controller.require_a_sum()


@pytest.mark.parametrize("dimensions", [65, 300, 100_000])
def test_shapes_of_more_dimensions_than_an_array_can_have_are_refused(controller, dimensions):
    """Their number of values took minutes to compute, or was too long to be printed."""
    reply = controller.ask(0, total(shapes=[(2**63,) * dimensions]) if dimensions < 1000 else many(dimensions))
    require_failure(reply, "ProtocolError", "shapes")
    controller.require_a_sum()


def many(dimensions):
    return encode(msg.Sum(name="epoch", timeout_s=1.0, shapes=[(2**31,) * dimensions]))


def test_the_largest_shapes_are_compared(controller):
    assert controller.ask(0, total(shapes=[(2**64 - 1,) * 64] * 1000)) is None
    require_failure(controller.ask(1, total()), "LayoutMismatchError", "1000 arrays")
    controller.require_a_sum()


def test_a_wait_without_end_is_refused(controller):
    """A deadline that is NaN never passes, and hides those of others."""
    require_failure(controller.ask(0, total(timeout_s=math.nan)), "ProtocolError", "timeout_s")
    assert controller.coordinator.next_deadline is None
    controller.require_a_sum()


def test_a_vote_with_a_long_reason_stops_the_job_and_no_sum(controller):
    """Every sum carries the reason, and was too large to be sent."""
    assert controller.ask(0, whole(huge(msg.StopVote, "reason", policy="any"))) == msg.Done()
    assert controller.coordinator.stop_reason.startswith("AAA")
    controller.require_a_sum()


def test_who_takes_the_place_that_one_has_left_does_not_turn_out_that_one(controller):
    """A connection left rank 0 and joined late; then somebody else took rank 0."""
    assert controller.ask(0, encode(msg.Leave())) == msg.Done()
    assert controller.ask(0, hello()).rank == 2
    assert controller.ask(7, hello(0)).rank == 0
    assert controller.ask(0, encoded(msg.Report)) == msg.Done()
    assert controller.ask(7, encoded(msg.Report)) == msg.Done()


# What no message can reach.

BASE = Path(importlib.util.find_spec("platoon_base").origin).parent
REACHABLE = [
    *(f"{name}.py" for name in ("layout", "metrics", "schedule", "sharding", "errors", "system/text")),
    *(f"controller/{name}.py" for name in ("controller", "departures", "outcome")),
    "shm/job_state.py",
    *(
        path.relative_to(BASE).as_posix()
        for room in ("channels", "coordination", "links")
        for path in (BASE / room).glob("*.py")
    ),
]
FORBIDDEN_MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"} | {
    *("subprocess", "importlib", "imp", "runpy", "code", "ctypes", "builtins", "pty", "yaml")
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "system", "popen", "import_module", "loads"}
FORBIDDEN_ARGUMENTS = {"shell", "allow_pickle"}


def dangers(source):
    """Name the imports and calls by which data might become code."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.add(node.module)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            found |= {name} & FORBIDDEN_CALLS
        elif isinstance(node, ast.keyword):
            found |= {node.arg} & FORBIDDEN_ARGUMENTS
    return found


@pytest.mark.parametrize("name", REACHABLE)
@pytest.mark.promise
def test_nothing_that_a_message_reaches_can_make_code_of_it(name):
    assert dangers((BASE / name).read_text(encoding="utf-8")) == set()


def test_what_is_not_framed_as_a_request_is_told_so():
    answers = []
    job_state = JobState(bytearray(JobState.size_bytes(1)), rows=1, create=True)
    server = ControlServer(Coordinator(1), job_state, lambda peer, request_id, data: answers.append(data))
    server.receive(Received(b"peer", b"", encode(msg.Leave())), 0.0)
    (failure,) = map(decode_reply, answers)
    assert failure.kind == "ProtocolError"
    assert "not framed as a request" in failure.message
