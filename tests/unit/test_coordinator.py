"""The coordinator as a state machine: requests go in, replies come out, and no socket, clock or process is needed."""

import itertools

import pytest
from asking import (
    CREATE,
    DONE,
    LARGE,
    SMALL,
    Job,
    form_group,
    hello,
    init,
    release,
    replies,
    require_failure,
    total,
    vote,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from platoon_base.channels import Received
from platoon_base.channels.server import ControlServer
from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import AnswerUser, CenterDropped, SendReply, StopJob
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.encoding import encode
from platoon_base.sharding import START
from platoon_base.shm.job_state import JobState

pytestmark = pytest.mark.base


@pytest.mark.parametrize(
    "request_",
    [init(), msg.CenterReady(), total(), msg.Report(metrics={}), msg.StopVote(reason=""), msg.Leave(),
     msg.UserRequest(req="x")],
    ids=lambda request: type(request).__name__,
)  # fmt: skip
def test_nothing_goes_before_hello(request_):
    require_failure(Job(2).join(0).answer("stranger", request_), "ProtocolError", "connect()")


def test_a_worker_that_is_answered_sees_how_many_live():
    """The launcher has started all, so the first to come knows of those that are to come."""
    coordinator, seen = Coordinator(3), []
    job_state = JobState(bytearray(JobState.size_bytes(3)), 3, create=True)
    server = ControlServer(coordinator, job_state, lambda *answer: seen.append(job_state.num_live))
    server.receive(Received(b"0", b"1", encode(hello(rank=0))), now=0.0)
    server.receive(Received(b"1", b"1", encode(hello(rank=1))), now=0.0)
    server.receive(Received(b"0", b"2", encode(msg.Leave())), now=0.0)
    assert seen == [(3, 3), (3, 3), (2, 2)]


@pytest.mark.parametrize("lost", [True, False])
def test_nothing_goes_after_the_end(lost):
    job = Job(2).join(0, 1)
    if lost:
        job.coordinator.worker_ended(0, lost=True)
    else:
        assert replies(job.ask(0, msg.Leave())) == {"0": DONE}
    require_failure(job.answer(0, total()), "ProtocolError", "connect()")


def test_all_of_a_sum_are_told_the_same_about_the_stop():
    job = Job(2).join(0, 1)
    job.ask(0, total())
    job.ask(1, msg.StopVote(reason="enough"))
    answered = replies(job.ask(1, total()))
    assert answered["0"].stop == answered["1"].stop == "enough"


def test_a_departure_that_decides_a_vote_is_told_to_those_whose_wait_it_ends():
    job = Job(3).join(0, 1, 2)
    job.ask(0, vote("all", "enough"))
    job.ask(1, vote("all", "enough"))
    for rank in (0, 1):
        assert job.ask(rank, total()) == []
    stop, *answers = job.coordinator.worker_ended(2, lost=True)
    assert stop == StopJob("enough")
    assert {peer: (reply.stop, reply.lost) for peer, reply in replies(answers).items()} == dict.fromkeys(
        "01", ("enough", [2])
    )


@pytest.mark.parametrize(
    ("call", "expected"),
    [(total(n=(1.0, 1.0)), {1}), (msg.Gather(name="g", timeout_s=1, value=b"x"), {1}), (form_group(), {1}),
     (total(), set()), (msg.Barrier(name="b", timeout_s=1), set()), (release(), set())],
    ids=["sum", "gather", "group", "nothing to add", "barrier", "release"],
)  # fmt: skip
def test_who_combines_something_with_others_has_cooperated(call, expected):
    job = Job(2).join(0, 1)
    job.ask(1, call)
    assert job.coordinator.cooperated == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (form_group(), True),
        (msg.Meet(name="m", timeout_s=1, binds=True), True),
        (msg.Meet(name="m", timeout_s=1), False),
    ],
    ids=["group", "meeting that binds", "meeting"],
)
def test_workers_that_need_each_other_are_bound_once_they_have_met(call, expected):
    job = Job(2).join(0, 1)
    job.ask(0, call)
    assert not job.coordinator.bound
    job.ask(1, call)
    assert job.coordinator.bound is expected


def test_the_users_controller_answers_the_users_requests():
    job = Job(2).join(0, 1)
    (action,) = job.ask(1, msg.UserRequest(req="next", info={"seen": 3}))
    assert isinstance(action, AnswerUser)
    assert (action.to.peer, action.rank, action.req, action.info) == (b"1", 1, "next", {"seen": 3})


class AnyJob(RuleBasedStateMachine):
    """Peers that join, ask one thing at a time and end at any moment, with the books that prove them all answered."""

    number = st.integers(0, 11)  # of the peer that does something, counted round those that can

    @initialize(size=st.integers(1, 4))
    def launch(self, size):
        self.coordinator = Coordinator(size)
        self.now = 0.0
        self.peers = {}  # rank -> peer of those that are in the job
        self.waiting = {}  # peer -> id and message of the request that has no reply yet
        self.ids = itertools.count()
        self.stopped = 0
        self.creators = []  # peers that were asked to create the center, and have neither done so nor ended
        for rank in range(size):
            self.join(rank)

    def ask(self, peer, request):
        """Send a request; every reply must be the only one to a request that waits for it."""
        assert peer not in self.waiting
        request_id = b"%d" % next(self.ids)
        self.waiting[peer] = request_id, request
        replied = self.book(self.coordinator.handle(peer, request_id, request, self.now))
        assert peer in replied or isinstance(request, (msg.InitCenter, msg.CollectiveCall))
        return replied.get(peer)

    def book(self, actions):
        replied = {}
        self.complete, self.passed = [], False  # calls, with the ranks that are told to have come
        for action in actions:
            if isinstance(action, StopJob):
                self.stopped += 1
                continue
            if isinstance(action, CenterDropped):
                continue
            request_id, request = self.waiting.pop(action.to.peer)
            assert action.to.request_id == request_id
            reply = action.reply if isinstance(action, SendReply) else msg.UserReply()
            self.check(action.to.peer, request, reply)
            replied[action.to.peer] = reply
        if len(set(self.complete)) == 1 and not self.passed:  # the second of two may have let somebody fall in
            ((kind, _, ranks),) = set(self.complete)
            roster = self.coordinator.roster
            assert roster.awaited - (roster.late if kind is msg.FormGroup else set()) <= set(ranks)
        return replied

    def check(self, peer, request, reply):
        expected = {
            msg.Hello: msg.Welcome,
            msg.InitCenter: msg.CenterRole,
            msg.Sum: msg.Sums,
            msg.Gather: msg.Gathered,
            msg.FormGroup: msg.Gathered,
            msg.Barrier: msg.Met,
            msg.ReleaseCenter: msg.Met,
            msg.UserRequest: msg.UserReply,
        }.get(type(request), msg.Done)
        assert isinstance(reply, (expected, msg.Failure))
        if reply == CREATE:
            self.creators.append(peer)
        if isinstance(reply, msg.CollectiveReply):
            may_pass = isinstance(request, msg.Barrier) or (
                isinstance(request, msg.ReleaseCenter) and not request.shares
            )
            self.passed = may_pass and len(reply.ranks) == 1
            self.complete.append((type(request), request.title, tuple(reply.ranks)))
        if isinstance(reply, msg.Sums):
            assert reply.pairs == {"n": (float(len(reply.ranks)), 1.0 * len(reply.ranks))}
        if isinstance(reply, msg.Gathered):
            assert reply.values == [b"%d" % rank for rank in reply.ranks]

    def gone(self, peer):
        self.peers = {rank: other for rank, other in self.peers.items() if other != peer}
        self.creators = [other for other in self.creators if other != peer]

    def choose(self, number):
        """Return a peer that waits for nothing."""
        free = sorted(set(self.peers.values()) - set(self.waiting))
        return free[number % len(free)]

    def somebody_is_free(self):
        return bool(set(self.peers.values()) - set(self.waiting))

    @rule(rank=st.none() | st.integers(0, 5))
    def join(self, rank):
        peer = b"peer %d" % next(self.ids)
        reply = self.ask(peer, hello(rank=rank))
        if isinstance(reply, msg.Welcome):
            assert reply.rank not in self.peers
            assert rank in (None, reply.rank)
            self.peers[reply.rank] = peer
        else:
            assert rank in self.peers or rank not in self.coordinator.roster

    @precondition(somebody_is_free)
    @rule(number=number, model=st.sampled_from([SMALL, SMALL, LARGE]), name=st.sampled_from(["EASGD", "EASGD", "ASGD"]))
    def init(self, number, model, name):
        peer = self.choose(number)
        if peer not in self.creators:
            self.ask(peer, init(model, name))

    @precondition(lambda self: self.creators and self.creators[0] not in self.waiting)
    @rule()
    def the_center_is_ready(self):
        assert self.ask(self.creators[0], msg.CenterReady()) == DONE
        self.creators.clear()

    @precondition(somebody_is_free)
    @rule(
        number=number,
        kind=st.sampled_from([msg.Sum, msg.Sum, msg.Sum, msg.Gather, msg.FormGroup, msg.Barrier]),
        name=st.sampled_from(["a", "a", "a", "b"]),
        timeout_s=st.sampled_from([1.0, 9.0]),
    )
    def call_together(self, number, kind, name, timeout_s):
        peer = self.choose(number)
        rank = next(rank for rank, other in self.peers.items() if other == peer)
        own = {msg.Sum: {"pairs": {"n": (1.0, 1.0)}}, msg.Gather: {"value": b"%d" % rank}, msg.Barrier: {}}
        self.ask(peer, kind(name=name, timeout_s=timeout_s, **own.get(kind, {"note": b"%d" % rank})))

    @precondition(somebody_is_free)
    @rule(number=number, timeout_s=st.sampled_from([1.0, 9.0]), shares=st.booleans())
    def release(self, number, timeout_s, shares):
        peer = self.choose(number)
        if peer not in self.creators:
            self.ask(peer, release(timeout_s, shares))

    @precondition(somebody_is_free)
    @rule(number=number, policy=st.sampled_from(["any", "all", "leader", "most"]))
    def vote(self, number, policy):
        self.ask(self.choose(number), vote(policy))

    @precondition(somebody_is_free)
    @rule(
        number=number,
        request=st.sampled_from([msg.Report(metrics={}), msg.UserRequest(req="x"), msg.CenterReady(), hello()]),
    )
    def ask_something_else(self, number, request):
        peer = self.choose(number)
        if peer not in self.creators:
            refused = isinstance(self.ask(peer, request), msg.Failure)
            assert refused == isinstance(request, (msg.Hello, msg.CenterReady))

    @precondition(somebody_is_free)
    @rule(number=number)
    def leave(self, number):
        peer = self.choose(number)
        assert self.ask(peer, msg.Leave()) == DONE
        self.gone(peer)

    @precondition(lambda self: self.coordinator.roster)
    @rule(number=number, lost=st.booleans())
    def end(self, number, lost):
        rank = sorted(self.coordinator.roster)[number % len(self.coordinator.roster)]
        peer = self.peers.get(rank)
        self.waiting.pop(peer, None)
        self.gone(peer)
        self.book(self.coordinator.worker_ended(rank, lost))

    @precondition(lambda self: any(m.phase.gone for m in self.coordinator.roster.values()))
    @rule(number=number)
    def start_again(self, number):
        gone = [rank for rank, m in self.coordinator.roster.items() if m.phase.gone]
        self.coordinator.readmit(gone[number % len(gone)], START)

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.book(self.coordinator.tick(self.now))

    @invariant()
    def books_agree(self):
        members = self.coordinator.roster.values()
        assert {m.rank: m.peer for m in members if m.phase.present} == self.peers
        assert self.coordinator.roster.num_live == sum(not m.phase.gone for m in members)
        assert len(self.creators) <= 1
        assert self.stopped == (self.coordinator.stop_reason is not None)
        waits = [request for _, request in self.waiting.values() if isinstance(request, msg.CollectiveCall)]
        assert (self.coordinator.next_deadline is not None) == bool(waits)
        if any(isinstance(request, msg.InitCenter) for _, request in self.waiting.values()):
            assert self.creators, "somebody must be creating what they wait for"

    def teardown(self):
        """When all deadlines have passed and every creator has done its work or died, nobody waits any more."""
        if not hasattr(self, "coordinator"):
            return
        self.book(self.coordinator.tick(self.now + 10))
        while self.creators:
            rank = next(rank for rank, peer in self.peers.items() if peer == self.creators[0])
            self.end(sorted(self.coordinator.roster).index(rank), lost=True)
        assert not self.waiting


def test_every_request_is_answered_once_whatever_happens():
    run_state_machine_as_test(
        AnyJob, settings=settings(max_examples=200, stateful_step_count=50, deadline=None, derandomize=True)
    )
