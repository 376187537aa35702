"""Signal handlers that talk to the job, whatever they interrupt: they work or are refused, and nothing ever hangs."""

import pytest

pytestmark = pytest.mark.base

HEAD = """
import os, signal, sys, time
import numpy as np
from interrupting import at_instruction
from platoon_base import ASGD, connect
from platoon_base.errors import ConfigurationError, PlatoonError, WorkerLostError
from watching import exchange_pids, progress, until, waits_in

signal.alarm(120)  # a deadlock ends the worker
worker = connect()
rank = worker.global_rank
x = np.zeros(1000)
worker.init_shared_params([x], ASGD())
pids = exchange_pids(worker)
"""


def test_a_handler_talks_to_the_job_while_its_worker_waits_for_the_others(run_job):
    outcome = run_job(
        HEAD
        + """
handled = []

def handler(number, frame):
    worker.report({"handled": 1})
    worker.keep("handled", 2)
    worker.progress(steps=1)
    worker.sync_params()
    worker.lock()
    worker.unlock()
    try:
        worker.reduce_metrics({})
    except ConfigurationError as exc:
        assert "make this call in the training loop" in str(exc), exc
    else:
        raise AssertionError("not refused")
    worker.request_stop("preempted")
    handled.append(worker.send_req("x"))

if rank == 0:
    signal.signal(signal.SIGTERM, handler)
    worker.barrier("ready")
    assert worker.advanced.sum_arrays("here", [np.ones(2)]).arrays[0].tolist() == [2, 2]
    assert handled == ["answered"]
else:
    worker.barrier("ready")
    until(lambda: waits_in("here", 0))
    os.kill(pids[0], signal.SIGTERM)
    until(lambda: worker.should_stop)  # while the other still waits
    until(lambda: progress(0).steps == 1)
    worker.advanced.sum_arrays("here", [np.ones(2)])
""",
        handler=lambda req, rank, info: "answered",
    ).require_success()
    assert outcome.result.stopped_by == "preempted"
    assert outcome.reported == {"handled": 1}


CALLS = """
calls = {
    "sync_params": lambda: worker.sync_params(),
    "copy_to_local": lambda: worker.copy_to_local(),
    "send_req": lambda: worker.send_req("x"),
    "report": lambda: worker.report({"a": 1}),
    "lock": lambda: (worker.lock(), worker.unlock()),
    "progress": lambda: worker.progress(steps=1),
}
"""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_handler_may_make_any_call_at_any_moment(run_job, workers):
    """After every 29th instruction of each call the handler makes each call."""
    run_job(
        HEAD
        + CALLS
        + """
def handler():
    for call in calls.values():
        try:
            call()
        except ConfigurationError as exc:
            assert "make this call in the training loop" in str(exc), exc
    made.append(number)

for interrupted in calls.values():
    number, made = 1, []
    while at_instruction(number, interrupted, handler):
        assert made.pop() == number
        number += 29
other = [r for r in range(worker.global_size) if r != rank]
worker.barrier()
worker.sync_params(timeout_s=1)  # no stripe is left locked
worker.barrier()
worker.lock(timeout_s=10)
worker.unlock()
""",
        workers,
        handler=lambda req, rank, info: "answered",
    ).require_success()


def test_a_handler_that_takes_and_frees_the_lock_leaves_it_to_the_call_that_it_interrupts(run_job):
    """After every single instruction of `lock`; another handle looks whether the worker has it."""
    run_job(
        """
import os
from interrupting import at_instruction
from platoon_base import connect
from platoon_base.shm.job_state import USER_LOCK
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.job.files import JobFiles
from platoon_base.shm.segments import Segment

worker = connect()
other = Segment.attach(JobFiles.read(os.environ["PLATOON_JOB"]).job_state)
number, came = 1, True
while came:
    came = at_instruction(number, worker.lock, lambda: (worker.lock(), worker.unlock()))
    assert other.locked(USER_LOCK), number
    worker.unlock()
    assert not other.locked(USER_LOCK), number
    number += 1
assert number > 20
other.try_lock(USER_LOCK)
try:
    worker.lock(timeout_s=0)
except CollectiveTimeoutError:
    other.unlock(USER_LOCK)
worker.lock()
worker.unlock()
assert not other.locked(USER_LOCK)  # a lock that was not had is not freed twice
""",
        workers=1,
    ).require_success()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_handler_may_close_the_handle_at_any_moment(run_job, workers):
    """The call that it interrupts ends, well or with an error; the process goes on, and joins the job again."""
    run_job(
        """
import signal
import sys
import numpy as np
from interrupting import at_instruction
from platoon_base import ASGD, connect
from platoon_base.errors import PlatoonError

signal.alarm(120)
calls = {
    "sync_params": lambda: worker.sync_params(),
    "copy_to_local": lambda: worker.copy_to_local(),
    "report": lambda: worker.report({"a": 1}),
    "keep": lambda: worker.keep("a", 1),
    "lock": lambda: worker.lock(),
    "progress": lambda: worker.progress(steps=1),
    "should_stop": lambda: worker.should_stop,
    "stop_reason": lambda: worker.stop_reason,
    "voters": lambda: worker.advanced.stop_votes.voters(),
}
if int(sys.argv[2]) == 1:
    calls["barrier"] = lambda: worker.barrier()
    calls["all_reduce"] = lambda: worker.all_reduce(np.ones(3))
for name, call in calls.items():
    number, came = 1, True
    while came:
        with connect() as worker:
            worker.init_shared_params([np.zeros(100)], ASGD())
            worker.advanced.stop_votes.open(1)
            try:
                came = at_instruction(number, call, worker.close)
                assert worker.closed == came
            except PlatoonError as exc:
                assert worker.closed and any(word in str(exc) for word in ("close", "left")), exc
        number += 23
""",
        workers,
        args=[str(workers)],
    ).require_success()


def test_alone_a_handler_may_make_any_call_at_any_moment(write_script, platoon):
    """A script under plain Python: each request is treated in the process itself."""
    import subprocess
    import sys

    script = write_script(
        """
import signal, sys
from interrupting import at_instruction
from platoon_base import connect
from platoon_base.errors import ConfigurationError

signal.alarm(120)
worker = connect()

def handler():
    worker.report({"n": number})
    worker.request_stop("preempted")
    worker.keep("n", number)
    try:
        worker.barrier()
    except ConfigurationError as exc:
        assert "make this call in the training loop" in str(exc), exc
    made.append(number)

for call in (lambda: worker.report({"a": 1}), lambda: worker.barrier(), lambda: worker.request_stop("x")):
    number, made = 1, []
    while at_instruction(number, call, handler):
        assert made.pop() == number
        number += 3
assert worker.should_stop
print("fine")
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=150, check=False)
    assert done.stdout == "fine\n", done.stderr
