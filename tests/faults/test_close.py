"""After close(): what a handle still answers, what it refuses, and that its memory goes; nothing ends the process."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from platoon_base.job.files import segment_prefix
from platoon_base.shm.job_state import JobState
from platoon_base.shm.segments import Segment
from platoon_base.views import array_on

pytestmark = pytest.mark.base

HEAD = """
import threading, time
import numpy as np
from platoon_base import ASGD, connect
from platoon_base.errors import ConfigurationError, PlatoonError

def mapped():
    return [line for line in open("/proc/self/maps") if "/dev/shm/platoon" in line]

def refused(call):
    try:
        call()
    except ConfigurationError as exc:
        assert "after close()" in str(exc), exc
    else:
        raise AssertionError("not refused")
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_closed_handle_answers_from_its_last_copy_or_refuses(run_job, workers):
    outcome = run_job(
        HEAD
        + """
with connect() as worker:
    worker.init_shared_params([np.zeros(1000)], ASGD())
    worker.all_reduce(np.ones(3))
    worker.advanced.stop_votes.open(1)
    worker.advanced.stop_votes.cast()
    worker.progress(steps=3, epoch=1, loss=0.5)
    worker.barrier()
    voters = set(range(worker.global_size))
    if worker.global_rank == 0:
        worker.request_stop("enough")
    while not worker.should_stop:
        time.sleep(1e-3)

assert not mapped(), mapped()
for _ in range(3):
    assert worker.closed
    assert worker.should_stop
    assert worker.stop_reason == "enough"
    assert worker.advanced.stop_votes.voters() == voters
    assert worker.advanced.stop_votes.passed("all", voters)
    assert worker.advanced.shares
    assert len(worker.shard(4)) == 4 // worker.global_size
    refused(lambda: worker.progress(steps=1))
    refused(lambda: worker.advanced.stop_votes.cast())
    refused(lambda: worker.advanced.stop_votes.open(2))
    refused(lambda: worker.sync_params())
    refused(lambda: worker.center_params().__enter__())
    refused(lambda: worker.all_reduce(np.ones(3)))
    refused(lambda: worker.keep("x", 1))
    worker.close()
""",
        workers,
    ).require_success()
    assert outcome.result.stopped_by == "enough"


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_that_ask_a_handle_while_it_is_closed_and_the_process_ends(run_job, workers):
    run_job(
        HEAD
        + """
worker = connect()
x = np.zeros(1000)
worker.init_shared_params([x], ASGD())
asked = [0, 0, 0]
unexpected = []

def ask(number, question):
    while True:
        try:
            question()
        except PlatoonError:
            assert worker.closed
        except BaseException as exc:
            unexpected.append(exc)
        asked[number] += 1

def look():
    return worker.should_stop, worker.stop_reason, worker.advanced.stop_votes.number, worker.closed

def tell():
    worker.progress(steps=1)

def synchronize():
    worker.sync_params()

for number, question in enumerate((look, tell, synchronize)):
    threading.Thread(target=ask, args=(number, question), daemon=True).start()

def let_them_ask():
    before = list(asked)
    deadline = time.monotonic() + 60
    while any(now < then + 200 for now, then in zip(asked, before)):
        assert time.monotonic() < deadline and not unexpected, (asked, before, unexpected)
        time.sleep(1e-3)

let_them_ask()
worker.close()
let_them_ask()
assert not unexpected, unexpected
""",
        workers,
    ).require_success()


def test_memory_stays_under_an_array_and_goes_with_it():
    """In a process of its own: reading memory that is unmapped would end it."""
    code = f"""
        import gc
        import numpy as np
        from platoon_base.shm.segments import Segment
        from platoon_base.views import array_on

        name = {segment_prefix()!r} + "close-test"

        def mapped():
            return any(name in line for line in open("/proc/self/maps"))

        with Segment.create(name, 8192) as segment:
            whole = array_on(segment.buffer, (1024,), "i8")
            whole[:] = range(1024)
            part = array_on(segment.buffer, (3,), "i8", 8 * 1000)
        Segment.unlink(name)
        assert segment.closed and mapped()
        assert whole.sum() == 1023 * 512
        del whole
        assert mapped() and part.tolist() == [1000, 1001, 1002]
        del part
        assert not mapped()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_job_state_is_read_and_written_on_a_last_copy():
    name = f"{segment_prefix()}test{os.getpid()}-state"
    with Segment.create(name, JobState.size_bytes(3)) as segment:
        job_state = JobState(segment.buffer, rows=3, create=True)
        job_state.stop("enough")
        job_state.row(2)["steps"] = 7
        job_state.stop_votes[1] = 5
        job_state.let_go()
        assert np.frombuffer(segment.buffer, np.uint8).any()
        array_on(segment.buffer, (len(segment.buffer),), np.uint8)[...] = 0
        Segment.unlink(name)
    assert job_state.stopping
    assert job_state.stop_reason == "enough"
    assert job_state.progress(2).steps == 7
    assert job_state.stop_votes.tolist() == [0, 5, 0]
    job_state.row(2)["steps"] += 1
    assert job_state.progress(2).steps == 8
