"""The roster: ranks are given once, ends are noted, late joiners get new ranks."""

import random

import pytest
from asking import DONE, Job, hello, require_failure, same, total

from platoon_base.coordination import messages as msg
from platoon_base.coordination.roster import Phase, Roster
from platoon_base.sharding import START, Position
from platoon_base.system.environment import MAX_WORKERS

pytestmark = pytest.mark.base


def test_a_launched_worker_is_welcomed_to_its_place():
    job = Job(3, seed=42)
    assert job.answer(1, hello(rank=1)) == msg.Welcome(rank=1, size=3, local_rank=1, local_size=3, seed=42)
    member = job.coordinator.roster[1]
    assert (member.phase, member.pid, member.host, member.device) == (Phase.JOINED, 4711, "here", "cpu")


def test_late_joiners_get_the_next_ranks():
    job = Job(2).join(0, 1)
    assert job.answer("late", hello()) == msg.Welcome(rank=2, size=3, local_rank=2, local_size=3, seed=0, late=True)
    assert job.answer("later", hello()) == msg.Welcome(rank=3, size=4, local_rank=3, local_size=4, seed=0, late=True)


def test_workers_by_hand_take_the_launched_ranks_first_and_then_join_late():
    job = Job(2, external=True)
    assert job.coordinator.roster.expected == [0, 1]
    welcomes = [job.answer(name, hello()) for name in ("first", "second", "third")]
    assert [(w.rank, w.size, w.late) for w in welcomes] == [(0, 2, False), (1, 2, False), (2, 3, True)]
    assert job.coordinator.roster.expected == []
    job.ask("first", msg.Leave())
    assert job.answer("fourth", hello()).rank == 3  # a worker that was there is not replaced


def test_workers_by_hand_of_an_unknown_number_all_join_late():
    job = Job(0, external=True)
    assert job.coordinator.roster.num_live == 0
    welcomes = [job.answer(name, hello()) for name in ("first", "second")]
    assert [(w.rank, w.size, w.late) for w in welcomes] == [(0, 1, True), (1, 2, True)]
    assert job.coordinator.roster.awaited == set()


def test_local_ranks_count_the_workers_of_one_host():
    job = Job(1)
    job.answer(0, hello(rank=0, host="a"))
    places = [job.answer(name, hello(host=name[0])) for name in ("b1", "a1", "b2")]
    assert [(p.rank, p.local_rank, p.local_size) for p in places] == [(1, 0, 1), (2, 1, 2), (3, 1, 2)]


def test_a_rank_whose_worker_was_lost_can_be_taken_again():
    job = Job(2).join(0, 1)
    job.coordinator.worker_ended(1, lost=True)
    assert job.answer("again", hello(rank=1)).rank == 1
    require_failure(job.answer(1, msg.Leave()), "ProtocolError", "hello")
    assert job.answer("again", msg.Report(metrics={})) == DONE


@pytest.mark.parametrize("rank", [2, 17, -1])
def test_a_rank_that_was_not_launched_is_refused(rank):
    require_failure(Job(2).answer("x", hello(rank=rank)), "ConfigurationError", "ranks 0 to 1", "pass no rank")


def test_another_protocol_is_refused():
    job = Job(2)
    reply = job.answer("x", hello(rank=0, protocol=msg.PROTOCOL + 1))
    require_failure(reply, "ProtocolError", f"got protocol {msg.PROTOCOL + 1}")
    job.join(0)


def test_a_full_job_is_full():
    job = Job(MAX_WORKERS - 1)
    assert job.answer("last", hello()).rank == MAX_WORKERS - 1
    require_failure(job.answer("more", hello()), "ConfigurationError", "full", f"{MAX_WORKERS} workers")
    job.ask("last", msg.Leave())
    require_failure(job.answer("more", hello()), "ConfigurationError", "full")  # its process may still hold the rank
    job.coordinator.worker_ended(MAX_WORKERS - 1, lost=False)
    welcome = job.answer("more", hello())
    assert (welcome.rank, welcome.late, welcome.local_rank) == (MAX_WORKERS - 1, True, MAX_WORKERS - 1)


def test_a_rank_that_nobody_waits_for_stays_so_when_it_joins_again():
    """A script may connect, close, and connect again before the rank has met the others."""
    job = Job(2).join(0, 1)
    job.coordinator.worker_ended(1, lost=True)
    job.coordinator.readmit(1, START)
    for peer in ("again", "once more"):
        job.answer(peer, hello(rank=1))
        assert job.coordinator.roster.awaited == {0}
        job.ask(peer, msg.Leave())
        assert job.coordinator.roster[1].phase.left
    job.answer("a third time", hello(rank=1))
    assert job.coordinator.roster.awaited == {0}


@pytest.mark.parametrize("said_goodbye", [True, False])
def test_a_process_that_ends_well_is_not_lost(said_goodbye):
    job = Job(2).join(0, 1)
    if said_goodbye:
        job.ask(1, msg.Leave())
    job.coordinator.worker_ended(1, lost=False)
    assert job.coordinator.roster[1].phase is Phase.LEFT
    assert job.answer(0, total()).lost == []


def test_a_process_that_fails_after_its_goodbye_is_lost():
    job = Job(2).join(0, 1)
    job.ask(1, msg.Leave())
    assert job.coordinator.worker_ended(1, lost=True) == []
    assert job.answer(0, total()).lost == [1]


def require_exact(roster):
    """Compare what is kept with what the participants say."""
    members = roster.values()
    assert roster.awaited == {each.rank for each in members if each.phase.awaited}
    assert roster.late == {each.rank for each in members if not each.launched}
    assert roster.num_live == sum(not each.phase.gone for each in members)
    left = [each.rank for each in members if each.phase is not Phase.LOST]
    assert roster.leader == min([rank for rank in left if rank < roster.size] or left, default=0)


def require_place(roster, welcome):
    """Compare a worker's place on its host with that among all who are there, or have not been heard of."""
    host = roster[welcome.rank].host
    here = sorted(rank for rank, each in roster.items() if each.host in ("", host))
    assert (welcome.local_rank, welcome.local_size) == (here.index(welcome.rank), len(here))


@pytest.mark.parametrize("seed", range(40))
def test_what_is_kept_is_what_the_participants_say(seed):
    """Joins, ends, returns and meetings in any order."""
    rng = random.Random(seed)
    roster = Roster(rng.randint(0, 6), 0, external=rng.random() < 0.3)
    for step in range(60):
        ranks = list(roster)
        rank = rng.choice(ranks) if ranks else None
        act = rng.choice(["join", "join", "join late", "depart", "again", "in", "out"])
        if act.startswith("join"):
            asked = rank if act == "join" else None
            welcome = roster.join(hello(rank=asked, host=rng.choice("abc")), b"%d" % step)
            if isinstance(welcome, msg.Welcome):
                require_place(roster, welcome)
        elif rank is None:
            continue
        elif act == "depart" and roster[rank].phase.present:
            roster.depart(roster[rank], lost=rng.random() < 0.5)
        elif act == "again" and roster[rank].phase.gone:
            roster.readmit(rank, START, 0)
        elif act == "in" and roster[rank].phase.present:
            roster.mark_joined([rank])
        elif act == "out" and roster[rank].phase.present and roster[rank].phase.awaited:
            roster.mark_absent([rank])
        require_exact(roster)


# Reports and fingerprints.


def test_reports_are_kept_by_name():
    job = Job(2).join(0, 1)
    assert job.answer(0, msg.Report(metrics={"loss": 0.5, "best": "a.npz"})) == DONE
    assert job.answer(1, msg.Report(metrics={"loss": 0.25})) == DONE
    assert job.coordinator.reported == {"loss": 0.25, "best": "a.npz"}


def test_the_names_of_reported_values_are_bounded():
    job = Job(1).join(0)
    assert job.answer(0, msg.Report(metrics={str(i): i for i in range(msg.MAX_REPORTED)})) == DONE
    assert job.answer(0, msg.Report(metrics={"7": 0.5})) == DONE
    require_failure(job.answer(0, msg.Report(metrics={"one": 1, "8": 0.5})), "ConfigurationError", "the limit is 1000")
    assert job.coordinator.reported["8"] == 8


def test_the_first_fingerprint_of_a_name_holds_for_all():
    job = Job(2).join(0, 1)
    assert job.answer(1, same("100 rows 1f00")) == DONE
    assert job.answer(0, same("100 rows 1f00")) == DONE
    differs = job.answer(0, same("90 rows 2c11"))
    require_failure(differs, "DataMismatchError", "the data", "rank 0 has 90 rows 2c11, rank 1 100 rows 1f00")
    assert differs.message.endswith(".\nSeed the split.")
    assert job.answer(0, same("90 rows 2c11", name="other data")) == DONE
    job.answer(1, same("0123456789abcdef", name="rows"))  # a checksum, which says nothing to a reader
    assert (
        job.answer(0, same("f" * 16, name="rows")).message == "rows differs between rank 1 and rank 0.\nSeed the split."
    )
    # One that joins later, or comes again, is compared too.
    job.coordinator.worker_ended(1, lost=True)
    job.coordinator.readmit(1, Position(1, 5, 5))
    job.answer("again", hello(rank=1))
    require_failure(job.answer("again", same("100 rows 0000")), "DataMismatchError", "rank 1 has 100 rows 0000")


def test_the_oldest_fingerprint_makes_room_for_the_newest():
    job = Job(1).join(0)
    for number in range(msg.MAX_FINGERPRINTS + 1):
        assert job.answer(0, same("a", name=f"batch {number}")) == DONE
    require_failure(job.answer(0, same("b", name="batch 1")), "DataMismatchError", "differs")
    assert job.answer(0, same("b", name="batch 0")) == DONE
