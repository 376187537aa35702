"""The coordinator as a state machine: requests go in, replies come out, and no socket, clock or process is needed."""

import itertools

import numpy as np
import pytest
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

from platoon_base.coordination import messages as msg
from platoon_base.coordination.coordinator import AnswerUser, CenterDropped, Coordinator, Phase, SendReply, StopJob
from platoon_base.sharding import Position
from platoon_base.system.environment import MAX_WORKERS

pytestmark = pytest.mark.base

SMALL = [("W", (2, 3), "float32")]
LARGE = [("W", (9, 9), "float32")]
CREATE, ATTACH, DONE = msg.CenterRole(create=True), msg.CenterRole(create=False), msg.Done()


class Job:
    """A coordinator, and the peers that ask it; a peer's name is that of the rank it has."""

    def __init__(self, size, seed=0):
        self.coordinator = Coordinator(size, seed)
        self.now = 100.0
        self._ids = itertools.count()

    def ask(self, peer, request):
        """Send a request of a peer, and return the actions."""
        return self.coordinator.handle(str(peer).encode(), b"%d" % next(self._ids), request, self.now)

    def answer(self, peer, request):
        """Send a request of a peer that is answered at once, with nothing else happening."""
        (action,) = self.ask(peer, request)
        assert action.to.peer == str(peer).encode()
        return action.reply

    def join(self, *ranks):
        for rank in ranks:
            assert isinstance(self.answer(rank, hello(rank=rank)), msg.Welcome)
        return self

    def tick(self, now):
        self.now = now
        return self.coordinator.tick(now)


def hello(rank=None, protocol=msg.PROTOCOL, host="here"):
    return msg.Hello(protocol=protocol, pid=4711, host=host, device="cpu", rank=rank)


def init(specs=SMALL, rule="EASGD(alpha=0.5)"):
    return msg.InitCenter(specs=specs, rule=rule)


def reduce(name="epoch", timeout_s=10.0, **pairs):
    return msg.Reduce(name=name, pairs=pairs, timeout_s=timeout_s)


def arrays(name="states", timeout_s=10.0, shapes=None, drops_center=False, values=()):
    vector = np.asarray(values, "<f8").tobytes()
    shapes = [(len(values),)] if shapes is None else shapes
    return msg.Reduce(name=name, pairs={}, timeout_s=timeout_s, vector=vector, shapes=shapes, drops_center=drops_center)


def replies(actions):
    """Map peers to replies; no peer may have two."""
    sent = [action for action in actions if isinstance(action, SendReply)]
    found = {action.to.peer.decode(): action.reply for action in sent}
    assert len(found) == len(sent)
    return found


def stops(actions):
    return [action.reason for action in actions if isinstance(action, StopJob)]


def require_failure(reply, kind, *words):
    assert isinstance(reply, msg.Failure)
    assert reply.kind == kind
    for word in words:
        assert word in reply.message


# Joining.


def test_a_launched_worker_is_welcomed_to_its_place():
    job = Job(3, seed=42)
    assert job.answer(1, hello(rank=1)) == msg.Welcome(rank=1, size=3, local_rank=1, local_size=3, seed=42)
    member = job.coordinator.members[1]
    assert (member.phase, member.pid, member.host, member.device) == (Phase.JOINED, 4711, "here", "cpu")


def test_late_joiners_get_the_next_ranks():
    job = Job(2).join(0, 1)
    assert job.answer("late", hello()) == msg.Welcome(rank=2, size=3, local_rank=2, local_size=3, seed=0, late=True)
    assert job.answer("later", hello()) == msg.Welcome(rank=3, size=4, local_rank=3, local_size=4, seed=0, late=True)


def test_a_late_joiner_does_not_take_the_place_of_one_that_left():
    job = Job(1).join(0)
    job.answer("late", hello())
    job.ask("late", msg.Leave())
    assert job.answer("later", hello()).rank == 2


def test_local_ranks_count_the_workers_of_one_host():
    job = Job(1)
    job.answer(0, hello(rank=0, host="a"))
    places = [job.answer(name, hello(host=name[0])) for name in ("b1", "a1", "b2")]
    assert [(p.rank, p.local_rank, p.local_size) for p in places] == [(1, 0, 1), (2, 1, 2), (3, 1, 2)]


def test_a_rank_is_taken_once():
    job = Job(2).join(0)
    require_failure(job.answer("other", hello(rank=0)), "ConfigurationError", "rank 0 is taken", "4711", "here")
    assert job.coordinator.members[0].peer == b"0"


def test_a_rank_whose_worker_was_lost_can_be_taken_again():
    job = Job(2).join(0, 1)
    job.coordinator.worker_ended(1, lost=True)
    assert job.answer("again", hello(rank=1)).rank == 1
    require_failure(job.answer(1, msg.Leave()), "ProtocolError", "hello")
    assert job.answer("again", msg.Report(metrics={})) == DONE


@pytest.mark.parametrize("rank", [2, 17, -1])
def test_a_rank_that_was_not_launched_is_refused(rank):
    require_failure(Job(2).answer("x", hello(rank=rank)), "ConfigurationError", "ranks 0 to 1", "leave the rank out")


def test_another_protocol_is_refused():
    job = Job(2)
    reply = job.answer("x", hello(rank=0, protocol=msg.PROTOCOL + 1))
    require_failure(reply, "ProtocolError", f"got protocol {msg.PROTOCOL + 1}")
    job.join(0)


def test_a_second_hello_is_refused():
    require_failure(Job(2).join(0).answer(0, hello(rank=1)), "ProtocolError", "already")


@pytest.mark.parametrize(
    "request_",
    [init(), msg.CenterReady(), reduce(), msg.Report(metrics={}), msg.Vote(reason=""), msg.Leave(),
     msg.UserRequest(req="x")],
    ids=lambda request: type(request).__name__,
)  # fmt: skip
def test_nothing_goes_before_hello(request_):
    require_failure(Job(2).join(0).answer("stranger", request_), "ProtocolError", "connect()")


@pytest.mark.parametrize("lost", [True, False])
def test_nothing_goes_after_the_end(lost):
    job = Job(2).join(0, 1)
    if lost:
        job.coordinator.worker_ended(0, lost=True)
    else:
        assert replies(job.ask(0, msg.Leave())) == {"0": DONE}
    require_failure(job.answer(0, reduce()), "ProtocolError", "connect()")


def test_a_reply_is_no_request():
    require_failure(Job(1).join(0).answer(0, DONE), "ProtocolError", "Done is not a request")


def test_a_full_job_is_full():
    job = Job(MAX_WORKERS - 1)
    assert job.answer("last", hello()).rank == MAX_WORKERS - 1
    require_failure(job.answer("more", hello()), "ConfigurationError", "full", f"{MAX_WORKERS} workers")


# The center.


def test_the_first_creates_and_the_others_wait_for_it():
    job = Job(3).join(0, 1, 2)
    assert job.answer(1, init()) == CREATE
    assert job.ask(0, init()) == []
    assert job.ask(2, init()) == []
    assert replies(job.ask(1, msg.CenterReady())) == {"1": DONE, "0": ATTACH, "2": ATTACH}
    assert {member.phase for member in job.coordinator.members.values()} == {Phase.TRAINING}


def test_who_comes_when_the_center_is_there_attaches_at_once():
    job = Job(2).join(0, 1)
    job.ask(0, init())
    job.ask(0, msg.CenterReady())
    assert job.answer(1, init()) == ATTACH


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize(
    ("request_", "kind", "word"),
    [(init(LARGE), "LayoutMismatchError", "W float32[9, 9]"), (init(rule="ASGD()"), "ConfigurationError", "ASGD()")],
    ids=["model", "rule"],
)
def test_another_model_or_rule_is_refused_and_the_job_goes_on(request_, kind, word, ready):
    job = Job(3).join(0, 1, 2)
    job.ask(0, init())
    if ready:
        job.ask(0, msg.CenterReady())
    require_failure(job.answer(1, request_), kind, word)
    job.ask(2, init())
    job.ask(1, init())
    if not ready:
        job.ask(0, msg.CenterReady())
    assert [job.coordinator.members[rank].phase for rank in range(3)] == [Phase.TRAINING] * 3


def test_if_the_creator_dies_the_next_creates():
    job = Job(4).join(0, 1, 2, 3)
    for rank in (3, 2, 1):
        job.ask(rank, init())
    assert replies(job.coordinator.worker_ended(3, lost=True)) == {"1": CREATE}
    assert replies(job.ask(1, msg.CenterReady())) == {"1": DONE, "2": ATTACH}
    assert job.answer(0, init()) == ATTACH


def test_if_the_creator_leaves_the_next_creates():
    job = Job(2).join(0, 1)
    job.ask(0, init())
    job.ask(1, init())
    assert replies(job.ask(0, msg.Leave())) == {"0": DONE, "1": CREATE}


def test_who_died_while_it_waited_is_not_asked_to_create():
    job = Job(3).join(0, 1, 2)
    for rank in (0, 1, 2):
        job.ask(rank, init())
    assert job.coordinator.worker_ended(1, lost=True) == []
    assert replies(job.coordinator.worker_ended(0, lost=True)) == {"2": CREATE}


def test_if_all_that_wanted_the_center_are_gone_it_begins_anew():
    job = Job(2).join(0, 1)
    job.ask(0, init())
    job.coordinator.worker_ended(0, lost=True)
    assert job.answer(1, init(LARGE, "ASGD()")) == CREATE, "another model and rule are as good as the first"


@pytest.mark.parametrize("when", ["before", "by another", "twice"])
def test_only_the_creator_says_that_the_center_is_ready(when):
    job = Job(2).join(0, 1)
    if when != "before":
        job.ask(0, init())
    if when == "twice":
        job.ask(0, msg.CenterReady())
    asker = 1 if when == "by another" else 0
    require_failure(job.answer(asker, msg.CenterReady()), "ProtocolError", f"rank {asker} was not asked")


def test_a_creator_that_failed_and_asks_again_creates():
    job = Job(2).join(0, 1)
    job.ask(0, init())
    assert replies(job.ask(0, init())) == {"0": CREATE}


# Sums over workers.


def test_a_sum_is_complete_with_the_last_contribution():
    job = Job(3).join(0, 1, 2)
    assert job.ask(2, reduce(loss=(1.0, 2.0))) == []
    assert job.ask(0, reduce(loss=(4.0, 1.0), error=(0.5, 1.0))) == []
    expected = msg.Reduced(pairs={"loss": (5.0, 4.0), "error": (0.5, 1.0)}, ranks=[0, 1, 2], lost=[])
    assert replies(job.ask(1, reduce(loss=(0.0, 1.0)))) == dict.fromkeys("012", expected)


def test_a_sum_waits_for_launched_workers_that_have_not_joined():
    job = Job(2).join(0)
    assert job.ask(0, reduce()) == []
    job.join(1)
    assert set(replies(job.ask(1, reduce()))) == {"0", "1"}


def test_the_same_name_can_be_used_again():
    job = Job(2).join(0, 1)
    for value in (1.0, 2.0):
        job.ask(0, reduce(m=(value, 1.0)))
        assert replies(job.ask(1, reduce(m=(value, 1.0))))["0"].pairs == {"m": (2 * value, 2.0)}


def test_sums_of_different_names_do_not_mix():
    job = Job(3).join(0, 1, 2)
    assert job.ask(0, reduce("train", m=(1.0, 1.0))) == []
    assert job.ask(1, reduce("valid", m=(5.0, 1.0))) == []


def test_a_wait_that_nobody_can_end_is_refused_for_all():
    job = Job(3).join(0, 1, 2)
    job.ask(0, reduce("train"))
    job.ask(1, reduce("valid"))
    answered = replies(job.ask(2, reduce("train")))
    assert set(answered) == {"0", "1", "2"}
    for reply in answered.values():
        require_failure(reply, "ProtocolError", "rank 0 in 'train', rank 1 in 'valid', rank 2 in 'train'")
    job.ask(0, reduce())
    job.ask(1, reduce())
    assert set(replies(job.ask(2, reduce()))) == {"0", "1", "2"}


def test_a_departure_can_leave_a_wait_that_nobody_can_end():
    job = Job(3).join(0, 1, 2)
    job.ask(0, reduce("train"))
    job.ask(1, reduce("valid"))
    answered = replies(job.coordinator.worker_ended(2, lost=True))
    assert set(answered) == {"0", "1"}
    require_failure(answered["0"], "ProtocolError", "all workers wait")


def test_all_of_a_sum_are_told_the_same_about_the_stop():
    job = Job(2).join(0, 1)
    job.ask(0, reduce())
    job.ask(1, msg.Vote(reason="enough"))
    answered = replies(job.ask(1, reduce()))
    assert answered["0"].stop == answered["1"].stop == "enough"


def test_a_second_call_takes_the_place_of_the_first():
    job = Job(2).join(0, 1)
    job.ask(0, reduce(m=(1.0, 1.0)))
    require_failure(job.answer(0, reduce(m=(2.0, 1.0))), "ProtocolError", "asked for something else meanwhile")
    answered = replies(job.ask(1, reduce(m=(5.0, 1.0))))
    assert answered["0"].pairs == answered["1"].pairs == {"m": (7.0, 2.0)}


def test_who_has_been_interrupted_is_not_counted_on():
    job = Job(2).join(0, 1)
    job.ask(0, reduce("a"))
    given_up, done = (action.reply for action in job.ask(0, msg.Withdraw()))
    require_failure(given_up, "ProtocolError", "meanwhile")
    assert done == DONE
    assert job.ask(1, reduce("b")) == []  # rank 0 may come there yet: not everybody waits
    assert replies(job.ask(0, reduce("b"))).keys() == {"0", "1"}


def test_who_leaves_releases_those_that_wait():
    job = Job(3).join(0, 1, 2)
    job.ask(0, reduce(m=(1.0, 1.0)))
    job.ask(1, reduce(m=(2.0, 1.0)))
    expected = msg.Reduced(pairs={"m": (3.0, 2.0)}, ranks=[0, 1], lost=[])
    assert replies(job.ask(2, msg.Leave())) == {"0": expected, "1": expected, "2": DONE}


@pytest.mark.parametrize("joined", [True, False])
def test_who_is_lost_releases_those_that_wait_and_is_told(joined):
    job = Job(3).join(0, 1)
    if joined:
        job.join(2)
    job.ask(0, reduce(m=(1.0, 1.0)))
    job.ask(1, reduce(m=(2.0, 1.0)))
    expected = msg.Reduced(pairs={"m": (3.0, 2.0)}, ranks=[0, 1], lost=[2])
    assert replies(job.coordinator.worker_ended(2, lost=True)) == {"0": expected, "1": expected}


def test_what_a_lost_worker_contributed_does_not_count():
    job = Job(2).join(0, 1)
    job.ask(0, reduce(m=(1.0, 1.0)))
    assert job.coordinator.worker_ended(0, lost=True) == []
    assert replies(job.ask(1, reduce(m=(2.0, 1.0)))) == {"1": msg.Reduced(pairs={"m": (2.0, 1.0)}, ranks=[1], lost=[0])}


def test_the_lost_stay_listed():
    job = Job(2).join(0, 1)
    job.coordinator.worker_ended(1, lost=True)
    for _ in range(2):
        assert job.answer(0, reduce()).lost == [1]


@pytest.mark.parametrize("said_goodbye", [True, False])
def test_a_process_that_ends_well_is_not_lost(said_goodbye):
    job = Job(2).join(0, 1)
    if said_goodbye:
        job.ask(1, msg.Leave())
    job.coordinator.worker_ended(1, lost=False)
    assert job.coordinator.members[1].phase is Phase.LEFT
    assert job.answer(0, reduce()).lost == []


def test_a_process_that_fails_after_its_goodbye_is_lost():
    job = Job(2).join(0, 1)
    job.ask(1, msg.Leave())
    assert job.coordinator.worker_ended(1, lost=True) == []
    assert job.answer(0, reduce()).lost == [1]


def test_the_end_of_a_process_that_is_no_worker_does_nothing():
    assert Job(2).coordinator.worker_ended(99, lost=True) == []


def test_nobody_waits_for_a_late_joiner_that_has_done_nothing_yet():
    job = Job(1).join(0)
    job.answer("late", hello())
    assert job.coordinator.participants == {0}
    assert job.answer(0, reduce()).ranks == [0]


def test_a_late_joiner_is_waited_for_once_it_has_met_the_others():
    job = Job(1).join(0)
    job.ask(0, init())
    job.ask(0, msg.CenterReady())
    job.answer("late", hello())
    assert job.answer("late", init()) == ATTACH
    assert job.answer(0, reduce()).ranks == [0]
    assert job.ask("late", reduce()) == []
    assert job.coordinator.participants == {0}
    answered = replies(job.ask(0, reduce()))
    assert answered["0"].ranks == answered["late"].ranks == [0, 1]
    assert job.coordinator.participants == {0, 1}
    assert job.ask(0, reduce()) == []


def test_a_late_joiner_passes_a_barrier_that_the_others_have_behind_them():
    job = Job(1).join(0)
    job.answer("late", hello())
    assert job.answer("late", msg.Reduce(name="compiled", pairs={}, timeout_s=10.0, late_pass=True)).ranks == [1]
    assert job.coordinator.participants == {0}


# Sums of vectors.


def vector_of(reply):
    return np.frombuffer(reply.vector, "<f8").tolist()


def test_vectors_are_added_in_the_order_of_the_ranks_whoever_comes_first():
    job = Job(3).join(0, 1, 2)
    job.ask(2, arrays(values=[1.0, 3.0]))
    job.ask(1, arrays(values=[-1e16, 2.0]))
    answered = replies(job.ask(0, arrays(values=[1e16, 1.0])))
    assert [vector_of(reply) for reply in answered.values()] == [[1.0, 6.0]] * 3
    assert len({reply.vector for reply in answered.values()}) == 1
    assert [reply.ranks for reply in answered.values()] == [[0, 1, 2]] * 3


def test_what_is_not_finite_passes_through_a_sum_of_vectors():
    job = Job(2).join(0, 1)
    job.ask(0, arrays(values=[np.nan, np.inf, np.inf, 1e308]))
    reply = replies(job.ask(1, arrays(values=[1.0, 1.0, -np.inf, 1e308])))["0"]
    np.testing.assert_array_equal(vector_of(reply), [np.nan, np.inf, np.nan, np.inf])


def test_the_vector_of_a_lost_worker_does_not_count():
    job = Job(3).join(0, 1, 2)
    for rank in (0, 1):
        job.ask(rank, arrays(values=[2.0**rank]))
    assert job.coordinator.worker_ended(0, lost=True) == []
    reply = replies(job.ask(2, arrays(values=[4.0])))["1"]
    assert (vector_of(reply), reply.ranks, reply.lost) == ([6.0], [1, 2], [0])


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (arrays(values=[1.0]), ["rank 1: 1 values in 1 arrays ((1,))"]),
        (arrays(values=[1.0, 2.0], shapes=[(2, 1)]), ["rank 1: 2 values in 1 arrays ((2, 1))"]),
        (arrays(values=[], shapes=[]), ["rank 1: 0 values in 0 arrays"]),
        (reduce("states"), ["rank 1: 0 values in 0 arrays"]),
    ],
    ids=["length", "shape", "nothing", "pairs"],
)
def test_arrays_of_different_shapes_are_refused_for_all_with_who_passed_what(odd, words):
    job = Job(3).join(0, 1, 2)
    job.ask(0, arrays(values=[1.0, 2.0]))
    job.ask(1, odd)
    answered = replies(job.ask(2, arrays(values=[1.0, 2.0])))
    assert set(answered) == {"0", "1", "2"}
    for reply in answered.values():
        require_failure(reply, "LayoutMismatchError", "'states'", "ranks 0, 2: 2 values in 1 arrays ((2,))", *words)
    for rank in (0, 1):
        assert job.ask(rank, arrays(values=[1.0])) == []
    assert vector_of(replies(job.ask(2, arrays(values=[1.0])))["0"]) == [3.0], "the next sum is a new one"


def test_all_may_add_nothing():
    job = Job(2).join(0, 1)
    job.ask(0, arrays(values=[], shapes=[]))
    assert replies(job.ask(1, arrays(values=[], shapes=[])))["0"].vector == b""


def test_a_vector_of_half_a_number_is_refused():
    job = Job(2).join(0, 1)
    reply = job.answer(0, msg.Reduce(name="states", pairs={}, timeout_s=1.0, vector=b"\0" * 12))
    require_failure(reply, "ProtocolError", "12 bytes")
    assert job.coordinator.next_deadline is None


# Letting go of the center.


def share(job, *ranks, request=None):
    for number, rank in enumerate(ranks):
        assert job.answer(rank, request or init()) == (ATTACH if number else CREATE)
        if not number:
            job.ask(rank, msg.CenterReady())


def release(timeout_s=10.0, drops_center=True):
    return arrays("release", timeout_s, [], drops_center)


def test_once_all_have_let_go_another_model_and_rule_can_be_shared():
    job = Job(3).join(0, 1, 2)
    share(job, 0, 1, 2)
    for rank in (2, 0):
        assert job.ask(rank, release()) == []
    assert {member.phase for member in job.coordinator.members.values()} == {Phase.TRAINING}
    assert set(replies(job.ask(1, release()))) == {"0", "1", "2"}
    assert {member.phase for member in job.coordinator.members.values()} == {Phase.JOINED}
    share(job, 1, 2, 0, request=init(LARGE, "ASGD()"))


@pytest.mark.parametrize("when", ["before", "while the others wait"])
@pytest.mark.parametrize("creator", [0, 2])
def test_the_center_is_let_go_without_those_that_died(when, creator):
    job = Job(3).join(0, 1, 2)
    share(job, *((2, 0, 1) if creator == 2 else (0, 1, 2)))
    if when == "before":
        job.coordinator.worker_ended(2, lost=True)
    job.ask(0, release())
    actions = job.ask(1, release())
    if when != "before":
        assert actions == []
        actions = job.coordinator.worker_ended(2, lost=True)
    assert replies(actions)["0"].ranks == [0, 1]
    share(job, 1, 0, request=init(LARGE))


def test_a_worker_that_shares_late_finds_the_center_until_it_lets_go_too():
    job = Job(2).join(0, 1)
    share(job, 0)
    assert job.ask(0, release()) == []
    assert job.answer(1, init()) == ATTACH
    assert set(replies(job.ask(1, release()))) == {"0", "1"}
    share(job, 0, 1, request=init(LARGE))


def test_who_shares_nothing_lets_nothing_go_alone_but_is_waited_for():
    job = Job(2).join(0, 1)
    share(job, 0)
    assert job.ask(0, release()) == []
    assert set(replies(job.ask(1, release(drops_center=False)))) == {"0", "1"}
    share(job, 1, request=init(LARGE))


def test_if_nobody_shares_anything_there_is_nothing_to_let_go():
    job = Job(2).join(0, 1)
    job.ask(0, release(drops_center=False))
    assert set(replies(job.ask(1, release(drops_center=False)))) == {"0", "1"}
    share(job, 0, 1)


def test_a_late_joiner_without_parameters_neither_waits_nor_takes_the_center_from_the_others():
    job = Job(1).join(0)
    share(job, 0)
    job.answer("late", hello())
    passing = msg.Reduce(name="release", pairs={}, timeout_s=1.0, late_pass=True)
    assert job.answer("late", passing).ranks == [1]
    assert job.answer("late", init()) == ATTACH


def test_a_center_that_is_being_made_is_kept_for_its_maker():
    job = Job(1).join(0)
    share(job, 0)
    job.answer("late", hello())
    job.ask(0, release())
    assert job.answer("late", init(LARGE)) == CREATE
    job.ask(0, release())
    assert job.answer("late", msg.CenterReady()) == DONE


def test_a_center_outlives_those_who_leave_without_letting_go():
    job = Job(1).join(0)
    share(job, 0)
    job.answer("late", hello())
    job.ask(0, msg.Leave())
    assert job.answer("late", init()) == ATTACH


# Deadlines.


def test_a_wait_that_is_too_long_names_who_is_missing():
    job = Job(4).join(0, 1, 2)
    job.ask(0, reduce("epoch 3", timeout_s=10))
    job.ask(1, reduce("epoch 3", timeout_s=60))
    assert job.coordinator.next_deadline == 110
    assert job.tick(109.9) == []
    answered = replies(job.tick(110))
    assert set(answered) == {"0"}
    require_failure(answered["0"], "CollectiveTimeoutError", "'epoch 3'", "rank 2 (joined)", "rank 3 (expected)")
    assert "rank 1" not in answered["0"].message
    assert job.coordinator.next_deadline == 160


def test_who_gave_up_is_waited_for_again():
    job = Job(2).join(0, 1)
    job.ask(0, reduce(timeout_s=10))
    job.tick(110)
    assert job.coordinator.next_deadline is None
    assert job.ask(1, reduce(timeout_s=10)) == []
    assert set(replies(job.ask(0, reduce(timeout_s=10)))) == {"0", "1"}


def test_who_waited_as_long_is_not_missing():
    job = Job(3).join(0, 1, 2)
    job.ask(0, reduce(timeout_s=10))
    job.ask(1, reduce(timeout_s=10))
    answered = replies(job.tick(110))
    assert set(answered) == {"0", "1"}
    for reply in answered.values():
        require_failure(reply, "CollectiveTimeoutError", "rank 2")
        assert "rank 0" not in reply.message
        assert "rank 1" not in reply.message


def test_without_waits_there_is_no_deadline():
    job = Job(1).join(0)
    assert job.coordinator.next_deadline is None
    assert job.tick(1e9) == []


# Votes.


def vote(policy, reason="done"):
    return msg.Vote(reason=reason, policy=policy)


@pytest.mark.parametrize(
    ("policy", "voters", "decided_by"),
    [("any", [2], 2), ("all", [1, 0, 2], 2), ("leader", [1, 2, 0], 0)],
)
def test_votes_decide_by_policy(policy, voters, decided_by):
    job = Job(3).join(0, 1, 2)
    for rank in voters:
        actions = job.ask(rank, vote(policy, f"rank {rank}"))
        assert replies(actions) == {str(rank): DONE}
        assert stops(actions) == ([f"rank {rank}"] if rank == decided_by else [])
    assert job.coordinator.stop_reason == f"rank {decided_by}"


def test_a_job_stops_once():
    job = Job(2).join(0, 1)
    assert stops(job.ask(0, vote("any", "first"))) == ["first"]
    assert stops(job.ask(1, vote("any", "second"))) == []
    assert job.coordinator.stop_reason == "first"


@pytest.mark.parametrize("end", ["leaves", "is lost"])
@pytest.mark.parametrize("policy", ["all", "leader"])
def test_a_departure_may_decide(policy, end):
    job = Job(3).join(0, 1, 2)
    assert stops(job.ask(1, vote(policy))) == []
    if policy == "all":
        assert stops(job.ask(2, vote(policy))) == []
    actions = job.ask(0, msg.Leave()) if end == "leaves" else job.coordinator.worker_ended(0, lost=True)
    assert stops(actions) == ["done"]


def test_the_vote_of_one_that_left_does_not_count():
    job = Job(3).join(0, 1, 2)
    job.ask(2, vote("all"))
    job.ask(2, msg.Leave())
    assert stops(job.ask(0, vote("all"))) == []
    assert stops(job.ask(1, vote("all"))) == ["done"]


def test_who_takes_a_rank_over_has_not_voted():
    job = Job(2).join(0, 1)
    job.ask(1, vote("all"))
    job.coordinator.worker_ended(1, lost=True)
    job.answer("again", hello(rank=1))
    assert stops(job.ask(0, vote("all"))) == []


def test_an_unknown_policy_is_refused_and_no_vote():
    job = Job(1).join(0)
    require_failure(job.answer(0, vote("most")), "ConfigurationError", "any, all, leader")
    assert job.coordinator.stop_reason is None


# Reports and the user's requests.


def test_reports_are_kept_by_name():
    job = Job(2).join(0, 1)
    assert job.answer(0, msg.Report(metrics={"loss": 0.5, "best": "a.npz"})) == DONE
    assert job.answer(1, msg.Report(metrics={"loss": 0.25})) == DONE
    assert job.coordinator.reported == {"loss": 0.25, "best": "a.npz"}


def test_the_users_controller_answers_the_users_requests():
    job = Job(2).join(0, 1)
    (action,) = job.ask(1, msg.UserRequest(req="next", info={"seen": 3}))
    assert isinstance(action, AnswerUser)
    assert (action.to.peer, action.rank, action.req, action.info) == (b"1", 1, "next", {"seen": 3})


def test_reserved_names_are_refused():
    reply = Job(1).join(0).answer(0, msg.UserRequest(req="platoon-stop"))
    require_failure(reply, "ConfigurationError", "reserved")


# Any events in any order.


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
        assert peer in replied or isinstance(request, (msg.InitCenter, msg.Reduce))
        return replied.get(peer)

    def book(self, actions):
        replied = {}
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
        return replied

    def check(self, peer, request, reply):
        expected = {
            msg.Hello: msg.Welcome,
            msg.InitCenter: msg.CenterRole,
            msg.Reduce: msg.Reduced,
            msg.UserRequest: msg.UserReply,
        }.get(type(request), msg.Done)
        assert isinstance(reply, (expected, msg.Failure))
        if reply == CREATE:
            self.creators.append(peer)
        if isinstance(reply, msg.Reduced):
            if request.name == "release":
                assert reply.pairs == {}
            else:
                assert reply.pairs == {"n": (float(len(reply.ranks)), 1.0 * len(reply.ranks))}
            assert self.coordinator.participants <= set(reply.ranks)

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
            assert rank in self.peers or rank not in self.coordinator.members

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
    @rule(number=number, name=st.sampled_from(["a", "a", "a", "b"]), timeout_s=st.sampled_from([1.0, 9.0]))
    def reduce(self, number, name, timeout_s):
        self.ask(self.choose(number), reduce(name, timeout_s, n=(1.0, 1.0)))

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

    @precondition(lambda self: self.coordinator.members)
    @rule(number=number, lost=st.booleans())
    def end(self, number, lost):
        rank = sorted(self.coordinator.members)[number % len(self.coordinator.members)]
        peer = self.peers.get(rank)
        self.waiting.pop(peer, None)
        self.gone(peer)
        self.book(self.coordinator.worker_ended(rank, lost))

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.book(self.coordinator.tick(self.now))

    @invariant()
    def books_agree(self):
        joined = (Phase.JOINED, Phase.TRAINING)
        assert {m.rank: m.peer for m in self.coordinator.members.values() if m.phase in joined} == self.peers
        assert len(self.creators) <= 1
        assert self.stopped == (self.coordinator.stop_reason is not None)
        waits = {request.name for _, request in self.waiting.values() if isinstance(request, msg.Reduce)}
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
            self.end(sorted(self.coordinator.members).index(rank), lost=True)
        assert not self.waiting


def test_every_request_is_answered_once_whatever_happens():
    run_state_machine_as_test(
        AnyJob, settings=settings(max_examples=200, stateful_step_count=50, deadline=None, derandomize=True)
    )


def test_notes_reach_all_who_meet():
    job = Job(3).join(0, 1, 2)
    assert job.ask(0, msg.Reduce(name="meet", pairs={}, timeout_s=5, note=b"id")) == []
    assert job.ask(2, msg.Reduce(name="meet", pairs={}, timeout_s=5)) == []
    actions = job.ask(1, msg.Reduce(name="meet", pairs={}, timeout_s=5, note=b"two"))
    assert {action.to.peer for action in actions} == {b"0", b"1", b"2"}
    assert all(action.reply.notes == {0: b"id", 1: b"two"} and action.reply.ranks == [0, 1, 2] for action in actions)


def test_a_center_has_one_place():
    job = Job(2).join(0, 1)
    on_device = msg.InitCenter(specs=SMALL, rule="EASGD", place="device")
    assert job.answer(0, on_device) == msg.CenterRole(create=True)
    job.answer(0, msg.CenterReady())
    refusal = job.answer(1, msg.InitCenter(specs=SMALL, rule="EASGD", place="host"))
    assert refusal.kind == "ConfigurationError"
    assert "on the host, the job's are on the device" in refusal.message
    assert job.answer(1, on_device) == msg.CenterRole(create=False)


# What is bounded, whatever arrives.


@pytest.mark.parametrize(
    "specs",
    [
        [],
        [("W", (2, -3), "float32")],
        [("W", (2,) * 65, "float32")],
        [("W", (2,), "bogus")],
        [("W", (2,), "object")],
        [("W", (2,), "int64")],
    ],
)
def test_parameters_that_no_worker_can_have_are_refused(specs):
    job = Job(2).join(0, 1)
    require_failure(job.answer(0, init(specs)), "ConfigurationError", "share arrays of floating-point numbers")
    assert job.answer(1, init()) == CREATE


def test_the_names_of_reported_values_are_bounded():
    job = Job(1).join(0)
    assert job.answer(0, msg.Report(metrics={str(i): i for i in range(msg.MAX_REPORTED)})) == DONE
    assert job.answer(0, msg.Report(metrics={"7": 0.5})) == DONE
    require_failure(job.answer(0, msg.Report(metrics={"one": 1, "8": 0.5})), "ConfigurationError", "the limit is 1000")
    assert job.coordinator.reported["8"] == 8


def test_a_worker_waits_for_one_thing_at_a_time():
    job = Job(3).join(0, 1, 2)
    for i in range(100):
        given_up = replies(job.ask(0, reduce(f"epoch {i}")))
        if i:
            require_failure(given_up["0"], "ProtocolError", "asked for something else meanwhile")
    job.ask(1, reduce("epoch 99"))
    assert replies(job.ask(2, reduce("epoch 99"))).keys() == {"0", "1", "2"}
    assert job.coordinator.next_deadline is None


def test_a_rank_that_comes_again_goes_on_and_is_late():
    job = Job(2).join(0, 1)
    job.answer(1, msg.Keep(name="best", value=b"\0"))
    job.coordinator.worker_ended(1, lost=True)
    job.coordinator.expect_again(1, Position(3, 2, 22))
    assert job.coordinator.participants == {0}
    assert job.answer("again", hello(rank=1)) == msg.Welcome(
        rank=1,
        size=2,
        local_rank=1,
        local_size=2,
        seed=0,
        late=True,
        resume_at=Position(3, 2, 22),
        kept={"best": b"\0"},
    )
    # It is waited for once it has met the others.
    assert replies(job.ask(0, reduce("a"))).keys() == {"0"}
    assert job.ask("again", reduce("b")) == []
    assert replies(job.ask(0, reduce("b"))).keys() == {"0", "again"}
    assert job.ask(0, reduce("c")) == []


def test_who_comes_again_for_a_center_that_was_released_makes_no_other_one():
    job = Job(2).join(0, 1)
    assert job.answer(0, init()) == CREATE
    job.ask(0, msg.CenterReady())
    assert job.answer(1, init()) == ATTACH
    job.coordinator.worker_ended(1, lost=True)
    job.coordinator.expect_again(1, Position(1, 5, 5))
    actions = job.ask(0, msg.Reduce(name="release", pairs={}, timeout_s=1.0, drops_center=True))
    # It is told before the worker is, who may then remove the center.
    assert [type(action) for action in actions] == [CenterDropped, SendReply]
    assert actions[0].shared.rule == "EASGD(alpha=0.5)"
    job.answer("again", hello(rank=1))
    require_failure(job.answer("again", init()), "ConfigurationError", "have released the parameters")
    assert job.answer(0, init()) == CREATE


def test_one_that_came_later_and_is_elsewhere_does_not_end_the_waits_of_the_others():
    job = Job(2).join(0, 1)
    job.coordinator.worker_ended(1, lost=True)
    job.coordinator.expect_again(1, Position())
    job.answer("again", hello(rank=1))
    assert job.ask("again", reduce("in the loop")) == []
    assert replies(job.ask(0, reduce("in the loop"))).keys() == {"0", "again"}
    # By chance they met, but the one goes on elsewhere.
    assert job.ask("again", reduce("before the loop")) == []
    for _ in range(3):
        assert replies(job.ask(0, reduce("in the loop"))).keys() == {"0"}
    assert replies(job.ask(0, reduce("before the loop"))).keys() == {"0", "again"}


@pytest.mark.parametrize("policy", ["any", "all", "leader"])
def test_the_vote_of_one_that_came_again_counts(policy):
    job = Job(2).join(0, 1)
    job.coordinator.worker_ended(0, lost=True)
    job.coordinator.expect_again(0, Position())
    job.answer("again", hello(rank=0))
    if policy == "all":
        assert stops(job.ask(1, msg.Vote(reason="enough", policy=policy))) == ["enough"]
    else:
        assert stops(job.ask("again", msg.Vote(reason="enough", policy=policy))) == ["enough"]


def test_one_that_came_again_and_released_with_the_others_shares_the_next_center():
    job = Job(2).join(0, 1)
    assert job.answer(0, init()) == CREATE
    job.ask(0, msg.CenterReady())
    job.coordinator.worker_ended(1, lost=True)
    job.coordinator.expect_again(1, Position())
    job.answer("again", hello(rank=1))
    assert job.answer("again", init()) == ATTACH
    release = msg.Reduce(name="release", pairs={}, timeout_s=1.0, drops_center=True)
    assert job.ask("again", release) == []
    assert len(job.ask(0, release)) == 3
    assert job.answer("again", init()) == CREATE


def test_the_first_center_of_a_resumed_job_is_made_from_the_checkpoint():
    job = Job(2)
    job.coordinator.take_up({0: Position(1, 2, 3)}, {1: {"x": b"y"}}, {"loss": 0.5}, has_center=True)
    assert job.answer(0, hello(rank=0)).resume_at == (1, 2, 3)
    assert job.answer(1, hello(rank=1)).kept == {"x": b"y"}
    assert job.coordinator.reported == {"loss": 0.5}
    resume = msg.CenterRole(create=True, resume=True)
    assert job.answer(0, init()) == resume
    assert job.coordinator.shared is None
    assert job.ask(1, init()) == []
    # Whoever creates it, creates it so, until it is there.
    assert replies(job.ask(0, msg.CenterReady(error="no memory"))) == {"0": DONE, "1": resume}
    assert job.answer(1, msg.CenterReady()) == DONE
    assert job.coordinator.shared.layout.specs[0].name == "W"
    assert job.answer(0, init()) == ATTACH
    for peer in (0, 1):
        last = job.ask(peer, msg.Reduce(name="release", pairs={}, timeout_s=1.0, drops_center=True))
    assert replies(last).keys() == {"0", "1"}
    assert job.answer(0, init()) == CREATE


def same(fingerprint, name="the data"):
    return msg.Same(name=name, fingerprint=fingerprint, remedy="Seed the split.")


def test_the_first_fingerprint_of_a_name_holds_for_all():
    job = Job(2).join(0, 1)
    assert job.answer(1, same("100 rows 1f00")) == DONE
    assert job.answer(0, same("100 rows 1f00")) == DONE
    differs = job.answer(0, same("90 rows 2c11"))
    require_failure(differs, "ConfigurationError", "the data", "rank 0 has 90 rows 2c11, rank 1 100 rows 1f00")
    assert differs.message.endswith(". Seed the split.")
    assert job.answer(0, same("90 rows 2c11", name="other data")) == DONE
    # One that joins later, or comes again, is compared too.
    job.coordinator.worker_ended(1, lost=True)
    job.coordinator.expect_again(1, Position(1, 5, 5))
    job.answer("again", hello(rank=1))
    require_failure(job.answer("again", same("100 rows 0000")), "ConfigurationError", "rank 1 has 100 rows 0000")


def test_the_oldest_fingerprint_makes_room_for_the_newest():
    job = Job(1).join(0)
    for number in range(msg.MAX_FINGERPRINTS + 1):
        assert job.answer(0, same("a", name=f"batch {number}")) == DONE
    require_failure(job.answer(0, same("b", name="batch 1")), "ConfigurationError", "differs")
    assert job.answer(0, same("b", name="batch 0")) == DONE
