"""Outer-step rules in jobs of real processes: rounds against NumPy, deaths, late joiners, uneven loops, checkpoints."""

import numpy as np
import pytest
from scripts_here import script_path

from platoon_base.rules import DiLoCo, LocalSGD, SlowMo

pytestmark = pytest.mark.base

SHAPES = [(37, 11), (600_000,), (5,)]


def progress(rank, step, shape, dtype):
    """Return what a worker learns in a step, whichever process computes it."""
    rng = np.random.default_rng([rank, step, shape[0]])
    return (0.1 * rng.standard_normal(shape)).astype(dtype)


LEARN = """
import sys
import numpy as np
from platoon_base import connect
from platoon_base.rules import DiLoCo, LocalSGD, SlowMo

SHAPES = [(37, 11), (600_000,), (5,)]

def progress(rank, step, shape, dtype):
    rng = np.random.default_rng([rank, step, shape[0]])
    return (0.1 * rng.standard_normal(shape)).astype(dtype)
"""


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("rule", ["DiLoCo(0.7, 0.8)", "LocalSGD()", "SlowMo(0.5, 1.2)"])
def test_rounds_follow_the_equations_step_by_step(run_job, tmp_path, rule, workers):
    run_job(
        LEARN
        + f"""
x = [np.ones(shape, dtype) for shape, dtype in zip(SHAPES, ("float32", "float32", "float64"))]
with connect() as worker:
    worker.init_shared_params(x, {rule})
    for step in range(4):
        for array in x:
            array += progress(worker.global_rank, step, array.shape, array.dtype)
        worker.sync_params(part=0.5 if step == 2 else 1.0)
    np.savez(f"{{sys.argv[1]}}/{{worker.global_rank}}.npz", *x)
""",
        workers=workers,
    ).require_success()
    rule = eval(rule, {"DiLoCo": DiLoCo, "LocalSGD": LocalSGD, "SlowMo": SlowMo})
    lr, mu = getattr(rule, "outer_lr", 1.0), getattr(rule, "momentum", 0.0)
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(workers)]
    for i, shape in enumerate(SHAPES):
        c, m = np.ones(shape), np.zeros(shape)
        alone = 1 + sum(progress(0, step, shape, "float64") for step in range(4))
        for step in range(4):
            r = 0.5 if step == 2 else 1.0
            d = np.mean([progress(rank, step, shape, "float64") for rank in range(workers)], axis=0)
            if isinstance(rule, SlowMo):
                c, m = c + lr * (d + r * mu * m), mu**r * m + d
            else:
                m = mu**r * m + d
                c = c + lr * (d + r * mu * m)
        for values in found:
            np.testing.assert_allclose(values[f"arr_{i}"], c if workers > 1 else alone, rtol=0, atol=1e-5)
            assert values[f"arr_{i}"].tobytes() == found[0][f"arr_{i}"].tobytes()


def mean_progress(step, *ranks):
    return np.mean([progress(rank, step, (600_000,), "float64") for rank in ranks], axis=0)


ONE_ARRAY = (
    LEARN
    + """
import os, signal
from watching import ending, until, waits_in
from platoon_base.errors import CollectiveTimeoutError, NonFiniteError
from platoon_base.worker import handle

x = np.zeros(600_000, "float32")  # two stripes, many blocks

def learn(step):
    global x
    x += progress(worker.global_rank, step, x.shape, x.dtype)

def save():
    np.savez(f"{sys.argv[1]}/{worker.global_rank}.npz", x)
"""
)

# What worker 2 of three does in its second round; the others make four.
ENDS = {
    "it leaves before": "worker.close(); raise SystemExit",
    "it dies before it meets the others": """
from platoon_base.channels.client import ControlClient
ControlClient.wait_for_all = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
""",
    "it dies in the midst of the step": """
from platoon_base.centers.round_kernels import RoundKernels
steps, step_of = [], RoundKernels.step
def step(*args):
    steps.append(1)
    if len(steps) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return step_of(*args)
RoundKernels.step = step
""",
}
OTHERS_COME_LATER = """
from platoon_base.centers.host import HostCenter
take_over = HostCenter.take_over
def later(*args):
    until(lambda: ending(2))  # so that it is the one to make the steps
    return take_over(*args)
HostCenter.take_over = later
"""


@pytest.mark.parametrize("end", ENDS)
def test_the_others_go_on_without_one_that_ends(run_job, tmp_path, end):
    """Its progress counts in the round in which it died, since it had given all of it; the workers left are the N."""
    in_step = end == "it dies in the midst of the step"
    outcome = run_job(
        ONE_ARRAY
        + f"""
END, OTHERS = {ENDS[end]!r}, {OTHERS_COME_LATER if in_step else ""!r}
with connect() as worker:
    worker.init_shared_params([x], DiLoCo(0.7, 0.8))
    worker.barrier("all here")
    for step in range(4):
        learn(step)
        if step == 1:
            exec(END if worker.global_rank == 2 else OTHERS)
        worker.sync_params()
    save()
""",
        workers=3,
    )
    ended = {exit.rank: exit.status for exit in outcome.result.exits}
    assert ended[0] == ended[1] == 0, outcome.logs
    c, m = np.zeros(600_000), np.zeros(600_000)
    for step in range(4):
        d = mean_progress(step, *([0, 1, 2] if step == 0 or (step == 1 and "leaves" not in end) else [0, 1]))
        m = 0.8 * m + d
        c = c + 0.7 * (d + 0.8 * m)
    for rank in (0, 1):
        np.testing.assert_allclose(np.load(tmp_path / f"{rank}.npz")["arr_0"], c, rtol=0, atol=1e-5)


def test_one_with_more_rounds_makes_them_alone_while_the_others_wait(run_job, tmp_path):
    run_job(
        ONE_ARRAY
        + """
with connect() as worker:
    worker.init_shared_params([x], LocalSGD())
    for step in range(2 + 2 * worker.global_rank):
        learn(step)
        worker.sync_params()
    worker.barrier("the end of the epoch")
    worker.copy_to_local()
    save()
"""
    ).require_success()
    expected = mean_progress(0, 0, 1) + mean_progress(1, 0, 1) + mean_progress(2, 1) + mean_progress(3, 1)
    for rank in (0, 1):
        np.testing.assert_allclose(np.load(tmp_path / f"{rank}.npz")["arr_0"], expected, rtol=0, atol=1e-5)


def test_who_is_not_waited_for_any_longer_counts_once(run_job, tmp_path):
    """A time-out names the worker that is missing; the next synchronization is the same round."""
    run_job(
        ONE_ARRAY
        + """
with connect() as worker:
    worker.init_shared_params([x], LocalSGD())
    worker.barrier("all here")
    learn(0)
    if worker.global_rank == 0:
        try:
            worker.sync_params(timeout_s=0.2)
        except CollectiveTimeoutError as error:
            assert "'synchronization round'" in str(error) and "rank 1" in str(error), error
        else:
            raise AssertionError("it has not waited")
        worker.request_stop("in vain")
    else:
        until(lambda: worker.should_stop)
    worker.sync_params()
    save()
"""
    ).require_success()
    for rank in (0, 1):
        found = np.load(tmp_path / f"{rank}.npz")["arr_0"]
        np.testing.assert_allclose(found, mean_progress(0, 0, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("choice", ["raise", "skip", "restore"])
def test_what_is_not_finite_stays_out_and_keeps_nobody_waiting(run_job, choice):
    outcome = run_job(
        ONE_ARRAY
        + f"""
with connect() as worker:
    worker.init_shared_params([x], DiLoCo(1, 0.5), on_nonfinite={choice!r})
    for step in range(2):
        x += 1
        if worker.global_rank == 1 and step == 0:
            x[100_000:100_003] = np.nan
        try:
            worker.sync_params()
        except NonFiniteError as error:
            assert {choice!r} == "raise" and worker.global_rank == 1, error
            assert "element 100000" in str(error), error
            worker.report({{"raised": 1}})
        bad = x[100_000:100_003]
        assert (np.delete(x, range(100_000, 100_003)) == [1.5, 3.25][step]).all()
        assert (bad == [0.75, 2.375][step]).all(), bad  # d = 1/2, then 1
"""
    ).require_success()
    assert ("raised" in outcome.reported) == (choice == "raise")


def test_a_late_worker_falls_in_with_the_rounds(run_job):
    outcome = run_job(
        script_path("outer_rules_a_late_worker_falls_in_with_the_rounds"),
        workers=1,
    ).require_success()
    assert outcome.reported == {"late": "done"}


def test_a_resumed_job_goes_on_with_its_momentum(platoon, write_script, tmp_path):
    text = (
        ONE_ARRAY
        + """
with connect() as worker:
    worker.init_shared_params([x], DiLoCo(0.7, 0.8))
    worker.barrier("all here")
    first = worker.resume_at.steps
    assert first == int(sys.argv[2]), first
    for step in range(first, first + 3):
        learn(step)
        worker.progress(steps=1, epoch=1)
        worker.sync_params()
    learn(99)
    save()
"""
    )
    script = write_script(text)
    for first in (0, 3):
        done = platoon("launch", "-n", 2, "--resume", "kept", script, tmp_path, first)
        assert done.returncode == 0, done.stdout + done.stderr
    c, m = np.zeros(600_000), np.zeros(600_000)
    for step in range(6):
        d = mean_progress(step, 0, 1)
        m = 0.8 * m + d
        c = c + 0.7 * (d + 0.8 * m)
    for rank in (0, 1):
        found = np.load(tmp_path / f"{rank}.npz")["arr_0"] - progress(rank, 99, (600_000,), "float64")
        np.testing.assert_allclose(found, c, rtol=0, atol=1e-5)
