"""A worker dies, in each way and at each point: asynchronous training goes on, synchronous training tells the cause.

No process waits for a time: the moments are those at which the job's state shows what the others do.
"""

import logging
import random
import signal

import pytest

pytestmark = [pytest.mark.base, pytest.mark.slow]

# How it dies, and the exit status. Who ends with status 0 without a goodbye is lost to the others all the same.
WAYS = {"killed": 128 + signal.SIGKILL, "exits": 0, "raises": 1}
ways = pytest.mark.parametrize("way", WAYS)

HEAD = """
import os, signal, sys
from pathlib import Path
import numpy as np
from platoon_base import ASGD, connect
from platoon_base.errors import WorkerLostError
from watching import ending, exchange_pids, takes_part, until, waits_in

FOLDER, WAY, VICTIM = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
is_victim = int(os.environ.get("PLATOON_RANK", -1)) == VICTIM

def die(*_):
    if WAY == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if WAY == "exits":
        os._exit(0)
    raise RuntimeError("on purpose")

signal.signal(signal.SIGUSR1, die)                       # for those who are to die while they wait

def others_wait_in(name):
    until(lambda: all(waits_in(name, rank) for rank in range(worker.global_size) if rank != worker.global_rank))
"""

# The part of the victim; what follows a death is never reached. The other two make the same steps as ever.
POINTS = {
    "before it joins": """
    """,
    "before it shares": """
    die()
    """,
    "while it makes the center": """
    from platoon_base.centers.host import HostCenters
    create = HostCenters.create
    def half(*args):
        center = create(*args)
        (FOLDER / "making").touch()
        others_wait_for_the_center()
        die()
    HostCenters.create = half
    share()
    """,
    "with a stripe locked": """
    share()
    steps(10)
    doomed = True
    steps(1)
    """,
    "while others wait in reduce_metrics": """
    share()
    steps(10)
    others_wait_in("reduce_metrics")
    die()
    """,
    "while it waits in a barrier": """
    share()
    steps(10)
    worker.barrier("killed in here")
    """,
    "in the validation": """
    share()
    steps(10)
    with worker.center_params():
        assert np.isfinite(x).all()
        others_wait_in("reduce_metrics")
        die()
    """,
}

ASYNCHRONOUS = """
POINT = sys.argv[4]
if is_victim and POINT == "before it joins":
    die()
worker = connect()
x = np.zeros(1000)
doomed = False

class Mortal(ASGD):
    '''Dies while it updates a stripe, which is locked then.'''
    kernel = None
    def sync(self, *arrays):
        if doomed:
            die()
        super().sync(*arrays)

def share():
    worker.init_shared_params([x], Mortal() if POINT == "with a stripe locked" else ASGD())

def steps(number):
    global x
    for _ in range(number):
        x += 10**worker.global_rank
        worker.sync_params()

def others_wait_for_the_center():
    # They have asked for it: a request is no wait that the job's state would show.
    until(lambda: len(list(FOLDER.glob("asks*"))) == 2)

pids = exchange_pids(worker) if POINT == "while it waits in a barrier" else None
if is_victim:
VICTIMS_PART
    raise AssertionError("it should be dead")
if POINT == "while it makes the center":
    until((FOLDER / "making").exists)
    (FOLDER / f"asks{worker.global_rank}").touch()
share()
steps(10)
if POINT == "while it waits in a barrier":
    if worker.global_rank == (VICTIM + 1) % 3:
        others_wait_in("barrier killed in here")
        os.kill(pids[VICTIM], signal.SIGUSR1)
        until(lambda: ending(VICTIM))
    worker.barrier("killed in here")
metrics = worker.reduce_metrics({"rank": (worker.global_rank, 1)})       # complete only without the dead
left = [rank for rank in range(3) if rank != VICTIM]
assert metrics == {"rank": sum(left) / 2}, metrics
steps(20)
assert worker.advanced.meet("trained") == left
with worker.center_params():
    late_steps = 10 if POINT in LATER else 0
    expected = sum(30 * 10**rank for rank in left) + late_steps * 10**VICTIM
    assert (x == expected).all(), (np.unique(x), expected)
assert not worker.should_stop
worker.report({str(worker.global_rank): "ended well"})
"""
LATER = [point for point, text in POINTS.items() if "steps(10)" in text]


@ways
@pytest.mark.parametrize("point", POINTS)
def test_asynchronous_training_goes_on_wherever_a_worker_dies(run_job, caplog, point, way):
    """Each of the others makes all of its steps, and every whole update is in the center, also those of the dead."""
    victim = (list(POINTS).index(point) + list(WAYS).index(way)) % 3
    script = HEAD + f"LATER = {LATER!r}\n" + ASYNCHRONOUS.replace("VICTIMS_PART", POINTS[point])
    with caplog.at_level(logging.INFO):
        outcome = run_job(script, workers=3, args=[way, str(victim), point])
    others = [rank for rank in range(3) if rank != victim]
    assert outcome.reported == {str(rank): "ended well" for rank in others}, outcome.logs
    statuses = {ended.rank: ended.status for ended in outcome.result.exits}
    assert statuses == {victim: WAYS[way], **dict.fromkeys(others, 0)}
    if way != "raises":
        assert outcome.result.exits[0].rank == victim
    assert outcome.result.status == WAYS[way]
    assert ("RuntimeError: on purpose" in outcome.logs[victim]) == (way == "raises")
    first = {"killed": "killed by SIGKILL", "raises": "RuntimeError: on purpose"}
    assert outcome.result.first_failure.startswith(f"worker {victim}: {first[way]}" if way in first else "")
    assert bool(outcome.result.first_failure) == (way in first)
    assert outcome.result.stopped_by == "end of script"
    assert not outcome.result.interrupted
    if way == "exits" and point != "before it joins":
        assert f"rank {victim} ended without leaving the job: exit status 0" in caplog.text
        assert any(f"without the lost ranks [{victim}]" in outcome.logs[rank] for rank in others)


@ways
def test_barriers_and_sums_go_on_without_the_dead_and_all_agree_when(run_job, way):
    outcome = run_job(
        HEAD
        + """
seen = []
with connect() as worker:
    rank = worker.global_rank
    pids = exchange_pids(worker)
    for step in range(30):
        if step == 11 and is_victim:
            others_wait_in("barrier barrier")
            die()
        if step == 17 and rank == 3:
            os.kill(pids[2], signal.SIGKILL)             # a second one, wherever it is
        worker.barrier()
        seen.append("".join(map(str, worker.advanced.sum_pairs("count", {})[1])))
    worker.report({str(rank): " ".join(seen)})
""",
        workers=4,
        args=[way, "1"],
    )
    assert set(outcome.reported) == {"0", "3"}, outcome.logs
    assert len(set(outcome.reported.values())) == 1, "each sum tells all who took part"
    seen = outcome.reported["0"].split()
    assert seen[:11] == ["0123"] * 11
    assert seen[11:17] == ["023"] * 6
    assert seen[-1] == "03"
    assert sorted(set(seen)) == ["0123", "023", "03"]
    assert outcome.result.status == 137


@pytest.mark.parametrize(("way", "shares"), [*((way, True) for way in WAYS), ("killed", False)])
def test_a_late_joiner_may_die_too(run_job, write_script, tmp_path, way, shares):
    """Only its parent learns its status: to the job, one that ends without a goodbye has failed."""
    late = write_script(
        HEAD
        + f"""
worker = connect()
x = np.zeros(1000)
if {shares}:
    worker.init_shared_params([x], ASGD())
    x += 1000
    worker.sync_params()
die()
""",
        "late.py",
    )
    outcome = run_job(
        HEAD
        + """
import subprocess
x = np.zeros(1000)
with connect() as worker:
    worker.init_shared_params([x], ASGD())
    if worker.global_rank == 0:
        environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
        dead = subprocess.run([sys.executable, sys.argv[4], *sys.argv[1:4]], env=environment, timeout=60)
        assert dead.returncode == {"killed": -9, "exits": 0, "raises": 1}[WAY]
    for _ in range(20):
        x += 1
        worker.sync_params()
    assert worker.advanced.meet("trained") == [0, 1]
    worker.copy_to_local()
    worker.report({str(worker.global_rank): x[0]})
""",
        args=[way, "2", str(late)],
    )
    expected = 40 + 1000 * shares
    assert outcome.reported == {"0": expected, "1": expected}, outcome.logs
    assert ("RuntimeError: on purpose" in outcome.logs[0]) == (way == "raises"), outcome.logs[0]
    exits = {ended.rank: ended.status for ended in outcome.result.exits}
    said_goodbye = way == "raises"  # its interpreter does so on its way out
    assert exits == {0: 0, 1: 0, 2: 0 if said_goodbye else 1}
    assert outcome.result.status == exits[2]


SYNCHRONOUS = """
STEP, MOMENT, SIZE = int(sys.argv[4]), sys.argv[5], int(sys.argv[6])
worker = connect()
rank, x = worker.global_rank, np.ones(SIZE, "float32")
pids = exchange_pids(worker)
killer = (VICTIM + 1) % 3
try:
    for step in range(60):
        if step == STEP and MOMENT == "between calls" and is_victim:
            die()
        if step == STEP and MOMENT == "while it waits" and rank == killer:
            until(lambda: (FOLDER / "inside").exists())
            os.kill(pids[VICTIM], signal.SIGUSR1)
            until(lambda: not takes_part(VICTIM))
        if step == STEP and MOMENT == "anywhere" and rank == killer:
            os.kill(pids[VICTIM], signal.SIGUSR1)
        if step == STEP and MOMENT == "while it waits" and is_victim:
            (FOLDER / "inside").touch()
        result = worker.all_reduce(x, timeout_s=60)
        assert (result == 3).all(), result
except WorkerLostError as error:
    if is_victim:
        raise
    worker.report({f"{rank}": str(error), f"step {rank}": step})
"""


@ways
@pytest.mark.parametrize("seed", range(4))
def test_synchronous_training_ends_with_the_rank_the_device_the_cause_and_the_log(run_job, tmp_path, seed, way):
    draw = random.Random(seed)
    moment = ["between calls", "while it waits", "anywhere", "between calls"][seed]
    victim, step, size = draw.randrange(3), draw.randrange(1, 40), draw.choice([3, 5000, 300_000])
    outcome = run_job(HEAD + SYNCHRONOUS, workers=3, args=[way, str(victim), str(step), moment, str(size)])
    others = [rank for rank in range(3) if rank != victim]
    statuses = {ended.rank: ended.status for ended in outcome.result.exits}
    assert statuses == {victim: WAYS[way], **dict.fromkeys(others, 0)}, outcome.logs
    assert outcome.result.status == WAYS[way]
    assert ("RuntimeError: on purpose" in outcome.logs[victim]) == (way == "raises")
    assert outcome.result.seconds < 60, "the deadline of a call is not waited for"
    assert set(outcome.reported) == {str(rank) for rank in others} | {f"step {rank}" for rank in others}, outcome.logs
    cause = {"killed": "killed by SIGKILL", "exits": "exit status 0", "raises": "exit status 1"}[way]
    for rank in others:
        text = outcome.reported[str(rank)]
        # Who dies within a call may have given its part of that one.
        assert moment == "anywhere" or outcome.reported[f"step {rank}"] - step in (0, moment == "while it waits")
        assert f"rank {victim}" in text
        if way == "raises" and "ended with RuntimeError('on purpose')" in text:
            assert moment != "between calls"  # it told so itself, from within a call
            continue
        for part in ("(cpu, ", cause, f"see {tmp_path / f'rank{victim}.log'}"):
            assert part in text, (part, text)


def test_of_two_that_die_at_once_one_is_named(run_job):
    outcome = run_job(
        HEAD
        + """
with connect() as worker:
    pids, x = exchange_pids(worker), np.ones(1000)
    try:
        for step in range(20):
            if step == 7 and worker.global_rank in (0, 2):
                die()
            worker.all_reduce(x)
    except WorkerLostError as error:
        worker.report({str(worker.global_rank): str(error)})
""",
        workers=4,
        args=["killed", "-1"],
    )
    assert set(outcome.reported) == {"1", "3"}, outcome.logs
    for text in outcome.reported.values():
        assert "rank 0 is lost (cpu, killed by SIGKILL" in text or "rank 2 is lost (cpu, killed by SIGKILL" in text
    assert sorted(ended.status for ended in outcome.result.exits) == [0, 0, 137, 137]


def test_survivors_of_a_lost_collective_can_still_use_the_center(run_job):
    """What needs all is over; what does not need all goes on."""
    outcome = run_job(
        HEAD
        + """
with connect() as worker:
    x = np.zeros(1000)
    worker.init_shared_params([x], ASGD())
    worker.all_reduce(x)
    if is_victim:
        others_wait_in("barrier barrier")
        die()
    worker.barrier()
    for attempt in range(3):
        try:
            worker.all_reduce(x, timeout_s=60)
        except WorkerLostError as error:
            assert "rank 1" in str(error), error
        else:
            raise AssertionError("combined without one of them")
    for _ in range(10):
        x += 1
        worker.sync_params()
    worker.barrier()
    worker.copy_to_local()
    worker.report({str(worker.global_rank): x[0]})
""",
        workers=3,
        args=["killed", "1"],
    )
    assert outcome.reported == {"0": 20, "2": 20}, outcome.logs
    assert outcome.result.status == 137
