"""The election of the creator of the center: one creates, the others attach, and all release it together."""

import numpy as np
import pytest
from asking import (
    ATTACH,
    CREATE,
    DONE,
    LARGE,
    SMALL,
    Job,
    hello,
    init,
    release,
    replies,
    require_failure,
    share,
    total,
)
from pairwise import pairwise

from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import CenterDropped, CenterMade, SendReply
from platoon_base.coordination.roster import Phase
from platoon_base.hosts import World
from platoon_base.rules import EASGD, AveragedEASGD, CenterMomentum, DiLoCo, GoSGD, LocalSGD, SlowMo, at_period
from platoon_base.rules.center import arguments_of
from platoon_base.sharding import START, Position

pytestmark = pytest.mark.base


def test_the_first_creates_and_the_others_wait_for_it():
    job = Job(3).join(0, 1, 2)
    assert job.answer(1, init()) == CREATE
    assert job.ask(0, init()) == []
    assert job.ask(2, init()) == []
    assert replies(job.ask(1, msg.CenterReady())) == {"1": DONE, "0": ATTACH, "2": ATTACH}
    assert {member.phase for member in job.coordinator.roster.values()} == {Phase.TRAINING}


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
    assert [job.coordinator.roster[rank].phase for rank in range(3)] == [Phase.TRAINING] * 3


def test_if_the_creator_dies_the_next_creates():
    job = Job(4).join(0, 1, 2, 3)
    for rank in (3, 2, 1):
        job.ask(rank, init())
    assert replies(job.coordinator.worker_ended(3, lost=True)) == {"1": CREATE}
    assert replies(job.ask(1, msg.CenterReady())) == {"1": DONE, "2": ATTACH}
    assert job.answer(0, init()) == ATTACH


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
    requester = 1 if when == "by another" else 0
    require_failure(job.answer(requester, msg.CenterReady()), "ProtocolError", f"rank {requester} was not asked")


def test_a_creator_that_failed_and_asks_again_creates():
    job = Job(2).join(0, 1)
    job.ask(0, init())
    assert replies(job.ask(0, init())) == {"0": CREATE}
    assert replies(job.ask(0, init(LARGE))) == {"0": CREATE}, "nobody else has seen its first model"


@pytest.mark.parametrize("moments", [0, 1, 3, -1])
def test_all_workers_share_as_many_moments(moments):
    job = Job(2).join(0, 1)
    arrays = [("x", (3,), "float32"), ("m", (3,), "float32"), ("v", (3,), "float32")]
    assert job.answer(0, msg.InitCenter(specs=arrays, rule="AveragedEASGD", moments=2)) == CREATE
    job.answer(0, msg.CenterReady())
    refusal = job.answer(1, msg.InitCenter(specs=arrays, rule="AveragedEASGD", moments=moments))
    if moments in (0, 1):
        require_failure(
            refusal, "LayoutMismatchError", f"got {moments} moments", "use the same optimizer on every worker"
        )
    else:
        require_failure(refusal, "ConfigurationError", f"of which {moments} are moments")


@pairwise(
    "arguments,ready,late",
    [
        (LocalSGD(overlap=0.5), LocalSGD(), "overlap=0", "overlap=0.5"),
        (DiLoCo(outer_lr=0.7), DiLoCo(outer_lr=0.1), "outer_lr=0.1", "outer_lr=0.7"),
        (DiLoCo(momentum=0.5, overlap=0.25), DiLoCo(), "momentum=0.8, overlap=0", "momentum=0.5, overlap=0.25"),
        (SlowMo(outer_lr=1), SlowMo(outer_lr=0.5), "outer_lr=0.5", "outer_lr=1"),
        (EASGD(), EASGD(alpha=0.5), "alpha=0.5", "alpha=None"),
        (EASGD(moments=True), EASGD(), "moments=False", "moments=True"),
        (CenterMomentum(gain=1), CenterMomentum(momentum=0.3), "momentum=0.3, gain=None", "momentum=None, gain=1"),
        (AveragedEASGD(scale=None), AveragedEASGD(pull=0.1), "pull=0.1, scale=2", "pull=0.5, scale=None"),
        (GoSGD(probability=0.5), GoSGD(), "probability=0.01", "probability=0.5"),
        (at_period(DiLoCo(), 10), at_period(DiLoCo(), 7), "sync_every=7", "sync_every=10"),
    ],
    [False, True],
    [False, True],
)
def test_workers_that_give_a_rule_other_arguments_are_refused(arguments, ready, late):
    first, second, own, theirs = arguments
    job = Job(3).join(*range(2 if late else 3))

    def with_rule(rule):
        return msg.InitCenter(specs=SMALL, rule=type(rule).__name__, arguments=arguments_of(rule))

    assert job.answer(0, with_rule(first)) == CREATE
    if ready:
        job.answer(0, msg.CenterReady())
    if late:
        job.answer(2, hello(rank=2))
    got = f"got {type(second).__name__} with {own} on rank 2, and with {theirs} on rank 0"
    require_failure(job.answer(2, with_rule(second)), "ConfigurationError", got, "the same arguments", "PLATOON_RULE")
    if ready:
        assert job.answer(2, with_rule(first)) == ATTACH


def test_the_rank_that_gave_the_other_arguments_is_named_though_another_creates():
    job = Job(3).join(0, 1, 2)
    first, other = (msg.InitCenter(specs=SMALL, rule="EASGD", arguments={"alpha": each}) for each in "12")
    job.ask(0, first)
    job.ask(1, first)
    job.coordinator.worker_ended(0, lost=True)  # rank 1 creates the center that rank 0 asked for
    require_failure(job.answer(2, other), "ConfigurationError", "got EASGD with alpha=2 on rank 2", "alpha=1 on rank 0")


def test_arguments_of_each_worker_alone_may_differ():
    assert arguments_of(GoSGD(seed=1)) == arguments_of(GoSGD(seed=2))
    for rule in (EASGD(), CenterMomentum(), AveragedEASGD()):  # nobody waits for anybody
        assert arguments_of(at_period(rule, 10)) == arguments_of(at_period(rule, 7)) == arguments_of(rule)
    assert arguments_of(EASGD(alpha=1)) == arguments_of(EASGD(alpha=np.float32(1)))


def test_a_center_is_in_one_memory():
    job = Job(2).join(0, 1)
    on_device = msg.InitCenter(specs=SMALL, rule="EASGD", location="device")
    assert job.answer(0, on_device) == msg.CenterRole(create=True)
    job.answer(0, msg.CenterReady())
    refusal = job.answer(1, msg.InitCenter(specs=SMALL, rule="EASGD", location="host"))
    assert refusal.kind == "ConfigurationError"
    assert "on the host, and the job's are on the device" in refusal.message
    assert job.answer(1, on_device) == msg.CenterRole(create=False)


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


def test_once_all_have_let_go_another_model_and_rule_can_be_shared():
    job = Job(3).join(0, 1, 2)
    share(job, 0, 1, 2)
    for rank in (2, 0):
        assert job.ask(rank, release()) == []
    assert {member.phase for member in job.coordinator.roster.values()} == {Phase.TRAINING}
    assert set(replies(job.ask(1, release()))) == {"0", "1", "2"}
    assert {member.phase for member in job.coordinator.roster.values()} == {Phase.JOINED}
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
    assert set(replies(job.ask(1, release(shares=False)))) == {"0", "1"}
    share(job, 1, request=init(LARGE))


def test_a_late_joiner_without_parameters_neither_waits_nor_takes_the_center_from_the_others():
    job = Job(1).join(0)
    share(job, 0)
    job.answer("late", hello())
    passing = release(shares=False)
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


def test_who_comes_again_for_a_center_that_was_released_makes_no_other_one():
    job = Job(2).join(0, 1)
    assert job.answer(0, init()) == CREATE
    job.ask(0, msg.CenterReady())
    assert job.answer(1, init()) == ATTACH
    job.coordinator.worker_ended(1, lost=True)
    job.coordinator.readmit(1, Position(1, 5, 5))
    actions = job.ask(0, release())
    # It is told before the worker is, who may then remove the center.
    assert [type(action) for action in actions] == [CenterDropped, SendReply]
    assert actions[0].shared.rule == "EASGD(alpha=0.5)"
    job.answer("again", hello(rank=1))
    require_failure(job.answer("again", init()), "ConfigurationError", "have released the parameters")
    assert job.answer(0, init()) == CREATE


def test_the_first_center_of_a_resumed_job_is_made_from_the_checkpoint():
    job = Job(2)
    job.coordinator.restore_earlier_job({0: Position(1, 2, 3)}, {1: {"x": b"y"}}, {"loss": 0.5}, has_center=True)
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
        last = job.ask(peer, release())
    assert replies(last).keys() == {"0", "1"}
    assert job.answer(0, init()) == CREATE


# Ranks 0 and 1 are on host 0, 2 and 3 on host 1.


@pytest.fixture
def two_hosts():
    job = Job(4, world=World([2, 2], 0, ["a", "b"], ["10.0.0.1", "10.0.0.2"])).join(0, 1, 2, 3)
    assert job.answer(2, init()) == CREATE
    assert job.ask(3, init()) == []
    return job


def made_on_the_second_host(job):
    """Its center is there, and waits for the values of host 0."""
    assert replies(job.ask(2, msg.CenterReady())) == {}
    return job


def test_other_hosts_wait_for_the_center_of_the_first(two_hosts):
    job = made_on_the_second_host(two_hosts)
    assert job.ask(1, total(timeout_s=1000.0)) == []  # and rank 0 may share yet
    for seconds in range(200):
        assert job.tick(101.0 + seconds) == []
    assert job.answer(0, init()) == CREATE
    assert job.tick(400.0) == []
    assert replies(job.ask(0, msg.CenterReady())) == {"0": DONE}
    assert replies(job.coordinator.center_filled(1)) == {"2": ATTACH, "3": ATTACH}
    assert job.coordinator.next_deadline == 1100.0  # that of rank 1


def found_to_be_hopeless(job, how="wait"):
    """Let the workers of host 0 go elsewhere; returns what is done about it."""
    for rank in (0, 1):
        if how == "wait" or (how == "each" and rank):
            assert job.ask(rank, total()) == []
        elif how == "fail":
            job.coordinator.worker_ended(rank, lost=True)
        else:
            job.ask(rank, msg.Leave())
    looks = []
    while not looks or not looks[-1]:
        assert job.now < 105
        assert job.coordinator.next_deadline < job.now + 1
        looks.append(job.tick(job.now + 0.5))
    return looks[-1]


WAYS = {"wait": "ranks 0, 1 wait", "each": "ranks 1 wait", "leave": "all of them", "fail": "all of them have ended"}


@pytest.mark.parametrize("how", WAYS)
def test_another_host_gives_its_values_when_no_worker_of_the_first_can_share(two_hosts, how):
    job = made_on_the_second_host(two_hosts)
    (source,) = found_to_be_hopeless(job, how)
    assert source.host == 1
    assert WAYS[how] in source.why
    assert job.tick(job.now + 1) == []
    assert replies(job.coordinator.center_filled(1)) == {"2": ATTACH, "3": ATTACH}
    assert job.coordinator.shared.rule == "EASGD(alpha=0.5)"


def test_a_worker_of_the_first_host_that_shares_later_takes_the_values_of_the_other(two_hosts):
    job = made_on_the_second_host(two_hosts)
    found_to_be_hopeless(job)
    job.ask(0, msg.Withdraw())
    assert job.answer(0, init()) == CREATE
    assert [type(action) for action in job.ask(0, msg.CenterReady())] == [CenterMade]
    assert replies(job.coordinator.center_filled(1)) == {"2": ATTACH, "3": ATTACH}
    assert replies(job.coordinator.center_filled(0)) == {"0": ATTACH}


def test_the_next_center_begins_with_the_values_of_the_first_host_again(two_hosts):
    job = made_on_the_second_host(two_hosts)
    found_to_be_hopeless(job)
    job.coordinator.center_filled(1)
    for rank in (0, 1):
        job.ask(rank, msg.Withdraw())
        job.ask(rank, release())
    for rank in (2, 3):
        actions = job.ask(rank, release())
    assert any(isinstance(action, CenterDropped) for action in actions)
    assert job.answer(0, init()) == CREATE
    assert replies(job.ask(0, msg.CenterReady())) == {"0": DONE}


def test_a_host_that_gives_its_values_and_is_lost_is_followed_by_the_next():
    job = Job(4, world=World([1] * 4, 0, list("abcd"), [f"10.0.0.{i}" for i in range(4)])).join(0, 1, 2, 3)
    for rank in (3, 2, 1):
        assert job.answer(rank, init()) == CREATE
        job.ask(rank, msg.CenterReady())
    job.ask(0, total(timeout_s=1000.0))
    job.tick(job.now + 0.5)
    (source,) = job.tick(job.now + 2)
    assert source.host == 1
    assert replies(job.coordinator.center_filled(1)) == {"1": ATTACH}
    assert replies(job.coordinator.center_filled(3)) == {"3": ATTACH}
    (source,) = job.coordinator.host_lost(1)  # host 2 has not got its values, host 3 has
    assert source.host == 3
    assert replies(job.coordinator.center_filled(2)) == {"2": ATTACH}
    assert [action.host for action in job.coordinator.host_lost(3)] == [2]
    assert job.coordinator.host_lost(2)[0].host == 0


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("saves", [True, False])
def test_other_hosts_are_refused_when_no_worker_of_the_first_can_share_and_checkpoints_need_one(two_hosts, how, saves):
    job = made_on_the_second_host(two_hosts)
    if saves:
        job.coordinator.saves_center()
    else:
        job.coordinator.restore_earlier_job({}, {}, {}, has_center=True)
    refused = replies(found_to_be_hopeless(job, how))
    assert set(refused) == {"2", "3"}
    for each in refused.values():
        words = ("no worker of host 0 shares parameters", WAYS[how], "checkpoint", "let a worker of host 0")
        require_failure(each, "ConfigurationError", *words)
    assert replies(job.ask(2, msg.CenterReady(error="refused"))) == {"2": DONE}
    assert job.tick(job.now + 10) == [] or how in ("wait", "each")
    assert job.coordinator.shared is None


def test_a_worker_of_the_first_host_that_is_started_again_may_share(two_hosts):
    job = made_on_the_second_host(two_hosts)
    job.ask(1, total(timeout_s=1000.0))
    job.coordinator.worker_ended(0, lost=True)
    assert job.tick(job.now + 0.1) == []
    job.coordinator.readmit(0, START)
    for seconds in range(60):
        assert job.tick(101.0 + seconds) == []
    job.ask("0", hello(rank=0))
    assert job.answer(0, init()) == CREATE
