"""Collective calls: all who are waited for come, or the waits end with an error that names the missing."""

import numpy as np
import pytest
from asking import ATTACH, DONE, Job, arrays, form_group, hello, init, replies, require_failure, total

from platoon_base.coordination import messages as msg
from platoon_base.sharding import Position

pytestmark = pytest.mark.base


def test_a_sum_is_complete_with_the_last_contribution():
    job = Job(3).join(0, 1, 2)
    assert job.ask(2, total(loss=(1.0, 2.0))) == []
    assert job.ask(0, total(loss=(4.0, 1.0), error=(0.5, 1.0))) == []
    expected = msg.Sums(pairs={"loss": (5.0, 4.0), "error": (0.5, 1.0)}, ranks=[0, 1, 2], lost=[])
    assert replies(job.ask(1, total(loss=(0.0, 1.0)))) == dict.fromkeys("012", expected)


def test_a_wait_that_nobody_can_end_is_refused_for_all():
    job = Job(3).join(0, 1, 2)
    job.ask(0, total("train"))
    job.ask(1, total("valid"))
    answered = replies(job.ask(2, total("train")))
    assert set(answered) == {"0", "1", "2"}
    for reply in answered.values():
        require_failure(reply, "ProtocolError", "rank 0 in 'train', rank 1 in 'valid', rank 2 in 'train'")
    job.ask(0, total())
    job.ask(1, total())
    assert set(replies(job.ask(2, total()))) == {"0", "1", "2"}


def test_a_departure_can_leave_a_wait_that_nobody_can_end():
    job = Job(3).join(0, 1, 2)
    job.ask(0, total("train"))
    job.ask(1, total("valid"))
    answered = replies(job.coordinator.worker_ended(2, lost=True))
    assert set(answered) == {"0", "1"}
    require_failure(answered["0"], "ProtocolError", "all workers wait")


def test_a_second_call_takes_the_place_of_the_first():
    job = Job(2).join(0, 1)
    job.ask(0, total(m=(1.0, 1.0)))
    require_failure(job.answer(0, total(m=(2.0, 1.0))), "ProtocolError", "asked for something else meanwhile")
    answered = replies(job.ask(1, total(m=(5.0, 1.0))))
    assert answered["0"].pairs == answered["1"].pairs == {"m": (7.0, 2.0)}


def test_who_has_been_interrupted_is_not_counted_on():
    job = Job(2).join(0, 1)
    job.ask(0, total("a"))
    given_up, done = (action.reply for action in job.ask(0, msg.Withdraw()))
    require_failure(given_up, "ProtocolError", "meanwhile")
    assert done == DONE
    assert job.ask(1, total("b")) == []  # rank 0 may come there yet: not everybody waits
    assert replies(job.ask(0, total("b"))).keys() == {"0", "1"}


@pytest.mark.parametrize("how", ["left", "lost", "lost before it joined"])
def test_who_is_gone_releases_those_that_wait_which_are_told_if_it_is_lost(how):
    job = Job(3).join(0, 1)
    if how != "lost before it joined":
        job.join(2)
    job.ask(0, total(m=(1.0, 1.0)))
    job.ask(1, total(m=(2.0, 1.0)))
    expected = msg.Sums(pairs={"m": (3.0, 2.0)}, ranks=[0, 1], lost=[] if how == "left" else [2])
    found = replies(job.ask(2, msg.Leave()) if how == "left" else job.coordinator.worker_ended(2, lost=True))
    assert found == {"0": expected, "1": expected, **({"2": DONE} if how == "left" else {})}


def test_a_late_joiner_is_waited_for_once_it_has_met_the_others():
    job = Job(1).join(0)
    job.ask(0, init())
    job.ask(0, msg.CenterReady())
    job.answer("late", hello())
    assert job.answer("late", init()) == ATTACH
    assert job.answer(0, total()).ranks == [0]
    assert job.ask("late", total()) == []
    assert job.coordinator.roster.awaited == {0}
    answered = replies(job.ask(0, total()))
    assert answered["0"].ranks == answered["late"].ranks == [0, 1]
    assert job.coordinator.roster.awaited == {0, 1}
    assert job.ask(0, total()) == []


def test_a_late_joiner_passes_a_barrier_that_the_others_have_behind_them():
    job = Job(1).join(0)
    job.answer("late", hello())
    assert job.answer("late", msg.Barrier(name="compiled", timeout_s=10.0)).ranks == [1]
    assert job.coordinator.roster.awaited == {0}


@pytest.mark.parametrize("kind", ["values", "notes"])
def test_what_each_gives_reaches_all_by_rank(kind):
    def give(what):
        return msg.Gather(name="g", timeout_s=5, value=what) if kind == "values" else form_group(what)

    job = Job(3).join(0, 1, 2)
    assert job.ask(2, give(b"")) == []
    assert job.ask(0, give(b"id")) == []
    answered = replies(job.ask(1, give(b"two")))
    assert answered == dict.fromkeys("012", msg.Gathered(values=[b"id", b"two", b""], ranks=[0, 1, 2], lost=[]))


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


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (arrays(values=[1.0]), ["rank 1: 1 values in 1 arrays ((1,))"]),
        (arrays(values=[1.0, 2.0], shapes=[(2, 1)]), ["rank 1: 2 values in 1 arrays ((2, 1))"]),
        (arrays(values=[], shapes=[]), ["rank 1: 0 values in 0 arrays"]),
        (total("states"), ["rank 1: 0 values in 0 arrays"]),
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


def test_a_vector_of_half_a_number_is_refused():
    job = Job(2).join(0, 1)
    reply = job.answer(0, msg.Sum(name="states", timeout_s=1.0, vector=b"\0" * 12))
    require_failure(reply, "ProtocolError", "12 bytes")
    assert job.coordinator.next_deadline is None


def test_a_wait_that_is_too_long_names_who_is_missing():
    job = Job(4).join(0, 1, 2)
    job.ask(0, total("epoch 3", timeout_s=10))
    job.ask(1, total("epoch 3", timeout_s=60))
    assert job.coordinator.next_deadline == 110
    assert job.tick(109.9) == []
    answered = replies(job.tick(110))
    assert set(answered) == {"0"}
    require_failure(answered["0"], "CollectiveTimeoutError", "'epoch 3'", "rank 2 (joined)", "rank 3 (expected)")
    assert "rank 1" not in answered["0"].message
    assert job.coordinator.next_deadline == 160


def test_who_is_slow_is_waited_for_until_it_stands_still():
    """The workers that wait ask again, for as long as the missing ranks go on."""
    job = Job(3).join(0, 1, 2)
    job.ask(0, total(timeout_s=10))
    moved = {1: 108.0, 2: 105.0}
    assert replies(job.tick(110, moved.get)) == {"0": msg.AskAgain(seconds=5.0)}
    assert job.coordinator.next_deadline is None
    job.ask(0, msg.Sum(name="epoch", timeout_s=5.0, patience_s=10.0))
    assert job.coordinator.next_deadline == 115
    moved.update({1: 110.0, 2: 109.0})
    assert replies(job.tick(115, moved.get)) == {"0": msg.AskAgain(seconds=4.0)}, "the patience counts from there"
    job.ask(0, msg.Sum(name="epoch", timeout_s=4.0, patience_s=10.0))
    moved[1] = 118.0
    answered = replies(job.tick(119, moved.get))
    require_failure(answered["0"], "CollectiveTimeoutError", "rank 2 (joined, no progress for 10 s)")
    assert "rank 1" not in answered["0"].message


def test_who_asks_again_meets_those_that_have_come_meanwhile():
    job = Job(2).join(0, 1)
    job.ask(0, total(timeout_s=10, loss=(1.0, 1.0)))
    assert replies(job.tick(110, lambda rank: 109.0)) == {"0": msg.AskAgain(seconds=9.0)}
    assert job.ask(1, total(timeout_s=10, loss=(2.0, 1.0))) == []
    again = msg.Sum(name="epoch", pairs={"loss": (1.0, 1.0)}, timeout_s=9.0, patience_s=10.0)
    assert replies(job.ask(0, again))["1"].pairs == {"loss": (3.0, 2.0)}


def test_who_gave_up_is_waited_for_again():
    job = Job(2).join(0, 1)
    job.ask(0, total(timeout_s=10))
    job.tick(110)
    assert job.coordinator.next_deadline is None
    assert job.ask(1, total(timeout_s=10)) == []
    assert set(replies(job.ask(0, total(timeout_s=10)))) == {"0", "1"}


def test_a_rank_that_comes_again_goes_on_and_is_late():
    job = Job(2).join(0, 1)
    job.answer(1, msg.Keep(name="best", value=b"\0"))
    job.coordinator.worker_ended(1, lost=True)
    job.coordinator.readmit(1, Position(3, 2, 22))
    assert job.coordinator.roster.awaited == {0}
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
    assert replies(job.ask(0, total("a"))).keys() == {"0"}
    assert job.ask("again", total("b")) == []
    assert replies(job.ask(0, total("b"))).keys() == {"0", "again"}
    assert job.ask(0, total("c")) == []


def test_one_that_came_later_and_is_elsewhere_does_not_end_the_waits_of_the_others():
    job = Job(2).join(0, 1)
    job.coordinator.worker_ended(1, lost=True)
    job.coordinator.readmit(1, Position())
    job.answer("again", hello(rank=1))
    assert job.ask("again", total("in the loop")) == []
    assert replies(job.ask(0, total("in the loop"))).keys() == {"0", "again"}
    # By chance they met, but the one goes on elsewhere.
    assert job.ask("again", total("before the loop")) == []
    for _ in range(3):
        assert replies(job.ask(0, total("in the loop"))).keys() == {"0"}
    assert replies(job.ask(0, total("before the loop"))).keys() == {"0", "again"}


def test_calls_of_two_kinds_and_one_name_are_not_the_same():
    job = Job(2).join(0, 1)
    job.ask(0, total("form a group"))
    answered = replies(job.ask(1, form_group()))
    for reply in answered.values():
        require_failure(reply, "ProtocolError", "rank 0 in 'form a group' (Sum), rank 1 in 'form a group' (FormGroup)")


ROUND = msg.Round(timeout_s=10.0)


def rounds_of(answered):
    """The numbers of the rounds that were answered, by peer."""
    return {peer: reply.number for peer, reply in answered.items()}


def test_the_rounds_are_counted_and_all_learn_the_same_number():
    job = Job(2).join(0, 1)
    for number in (1, 2, 3):
        assert job.ask(0, ROUND) == []
        assert rounds_of(replies(job.ask(1, ROUND))) == {"0": number, "1": number}


def test_a_round_goes_on_without_those_that_wait_elsewhere():
    job = Job(3).join(0, 1, 2)
    assert job.ask(0, total("epoch 1")) == []
    assert job.ask(1, ROUND) == []
    assert rounds_of(replies(job.ask(2, ROUND))) == {"1": 1, "2": 1}
    assert job.ask(1, total("epoch 1")) == []
    assert rounds_of(replies(job.ask(2, ROUND))) == {"2": 2}
    assert set(replies(job.ask(2, total("epoch 1")))) == {"0", "1", "2"}


def made(number):
    return msg.RoundsMade(number=number, timeout_s=10.0)


def test_rounds_are_compared_without_those_that_wait_elsewhere():
    """As they may share no parameters."""
    job = Job(3).join(0, 1, 2)
    assert job.ask(0, total("averaged")) == []
    assert job.ask(1, made(4)) == []
    answered = replies(job.ask(2, made(6)))
    assert {peer: (reply.latest, reply.behind) for peer, reply in answered.items()} == {"1": (6, [1]), "2": (6, [1])}


def test_rounds_are_not_compared_while_others_make_some():
    job = Job(3).join(0, 1, 2)
    assert job.ask(0, made(0)) == []
    assert job.ask(1, ROUND) == []
    assert rounds_of(replies(job.ask(2, ROUND))) == {"1": 1, "2": 1}
    assert job.ask(1, made(1)) == []
    assert rounds_of(replies(job.ask(2, ROUND))) == {"2": 2}
    answered = replies(job.ask(2, made(2)))
    assert [reply.behind for reply in answered.values()] == [[0, 1]] * 3
    assert set(answered) == {"0", "1", "2"}


def test_waits_for_different_calls_are_refused_though_one_that_came_later_waits_in_a_round():
    job = Job(2).join(0, 1)
    job.answer("late", hello())
    job.ask("late", ROUND)
    job.ask(0, total("train"))
    answered = replies(job.ask(1, total("valid")))
    require_failure(answered["0"], "ProtocolError", "all workers wait")


def test_a_group_is_formed_without_late_joiners():
    job = Job(2).join(0, 1)
    job.answer("late", hello())
    assert job.ask("late", total()) == []
    for rank in (0, 1):
        answered = replies(job.ask(rank, total()))
    assert set(answered) == {"0", "1", "late"}
    assert job.ask(0, form_group()) == []
    assert set(replies(job.ask(1, form_group()))) == {"0", "1"}
    assert job.ask(0, total()) == []
    assert job.ask(1, total()) == []
    assert set(replies(job.ask("late", total()))) == {"0", "1", "late"}
