"""The victim dies at a point; the other two make the same steps as ever."""

from job_preamble import ASGD, FOLDER, connect, ending, exchange_pids, np, os, signal, sys, until
from deaths_head import VICTIM, die, is_victim, others_wait_in
from platoon_base.centers.host import HostCenters

POINT = sys.argv[4]
if is_victim and POINT == "before it joins":
    die()
worker = connect()
x = np.zeros(1000)
doomed = False


class Mortal(ASGD):
    """Dies while it updates a stripe, which is locked then."""

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


def die_while_it_makes_the_center():
    create = HostCenters.create

    def half(*args):
        center = create(*args)
        (FOLDER / "making").touch()
        # The others have sent their requests: these are no waits that the job's state would show.
        until(lambda: len(list(FOLDER.glob("asks*"))) == 2)
        die()

    HostCenters.create = half
    share()


def die_after_steps():
    global doomed
    share()
    steps(10)
    if POINT == "with a stripe locked":
        doomed = True
        steps(1)
    if POINT == "while others wait in reduce_metrics":
        others_wait_in(worker, "reduce_metrics")
        die()
    if POINT == "while it waits in a barrier":
        worker.barrier("killed in here")
    if POINT == "in the validation":
        with worker.center_params():
            assert np.isfinite(x).all()
            others_wait_in(worker, "reduce_metrics")
            die()


pids = exchange_pids(worker) if POINT == "while it waits in a barrier" else None
late_steps = 0 if POINT in ("before it joins", "before it shares", "while it makes the center") else 10
if is_victim:
    if POINT == "before it shares":
        die()
    if POINT == "while it makes the center":
        die_while_it_makes_the_center()
    die_after_steps()
    raise AssertionError("it should be dead")
if POINT == "while it makes the center":
    until((FOLDER / "making").exists)
    (FOLDER / f"asks{worker.global_rank}").touch()
share()
steps(10)
if POINT == "while it waits in a barrier":
    if worker.global_rank == (VICTIM + 1) % 3:
        others_wait_in(worker, "barrier killed in here")
        os.kill(pids[VICTIM], signal.SIGUSR1)
        until(lambda: ending(VICTIM))
    worker.barrier("killed in here")
metrics = worker.reduce_metrics({"rank": (worker.global_rank, 1)})  # complete only without the dead
left = [rank for rank in range(3) if rank != VICTIM]
assert metrics == {"rank": sum(left) / 2}, metrics
steps(20)
assert worker.advanced.meet("trained") == left
with worker.center_params():
    expected = sum(30 * 10**rank for rank in left) + late_steps * 10**VICTIM
    assert (x == expected).all(), (np.unique(x), expected)
assert not worker.should_stop
worker.report({str(worker.global_rank): "ended well"})
