"""The begin of a training on all workers: in which order its steps come, and what each of them gives the workers."""

import numpy as np
import pytest

from platoon_base import EASGD
from platoon_base.errors import ConfigurationError
from platoon_base.worker import start_training

pytestmark = pytest.mark.base

VARIABLE = """
import sys
import numpy as np
from platoon_base import ASGD, EASGD, connect
from platoon_base.errors import PlatoonError
from platoon_base.worker import copy_first_values, copy_values, start_training

class Variable:
    def __init__(self, name, value):
        self.name, self.value = name, np.asarray(value)

    def get_value(self, borrow=False, return_internal_type=False):
        return self.value if borrow else self.value.copy()

    def set_value(self, value, borrow=False):
        self.value = value

worker = connect()
rank = worker.global_rank
"""


class Variable:
    """A variable of a framework."""

    def __init__(self, name, value):
        self.name, self.value = name, np.asarray(value)

    def get_value(self, borrow=False):
        return self.value if borrow else self.value.copy()

    def set_value(self, value):
        self.value = value


def test_alone_a_training_begins_with_its_own_values(solo_worker):
    weight, shared, met = Variable("w", [1.0, 2.0]), np.ones(3), []
    options = {"rule": EASGD(), "parameters": [shared], "once_met": met.append}
    assert start_training(solo_worker, "fit", "fit", values=[weight], **options) == [0]
    assert met == [[0]]
    np.testing.assert_array_equal(weight.value, [1.0, 2.0])
    solo_worker.sync_params()
    np.testing.assert_array_equal(shared, 1.0)


def test_a_vote_of_the_training_before_does_not_count(solo_worker):
    for _ in range(2):
        start_training(solo_worker, "fit", "fit")
        assert solo_worker.advanced.stop_votes.voters() == set()
        solo_worker.advanced.stop_votes.cast()
        assert solo_worker.advanced.stop_votes.voters() == {0}


def test_values_that_workers_cannot_exchange_are_refused(solo_worker):
    with pytest.raises(ConfigurationError, match="got w of dtype complex128, which cannot be copied"):
        start_training(solo_worker, "fit", "fit", values=[Variable("w", [1j])])


def test_all_begin_with_the_values_of_the_first(run_job):
    """Bit by bit, counters too; what is shared comes from the center, and nobody trains before all have it."""
    run_job(
        VARIABLE
        + """
values = [Variable("w", np.full((2, 3), -0.0 if rank == 0 else np.nan, "f4")), Variable("steps", np.int64(5 + rank)),
          Variable("scalar", np.float16(rank)), Variable(None, np.asfortranarray(np.arange(6.0).reshape(2, 3)) + rank)]
weight, order = Variable("shared", np.full(4, 10.0 + rank)), []

def once_met(ranks):
    order.append([ranks, worker.advanced.shares, int(values[1].value) == 5 + rank])

rule = ASGD()
ranks = start_training(worker, "fit 1", "fit", values=[*values, weight], purpose="ASGD", rule=rule,
                       parameters=[weight], once_met=once_met)
assert ranks == [0, 1, 2]
assert order == [[[0, 1, 2], False, True]]
assert (weight.value == 10).all()
expected = [np.full((2, 3), -0.0, "f4"), np.int64(5), np.float16(0), np.arange(6.0).reshape(2, 3)]
assert [v.value.tobytes() for v in values] == [e.tobytes() for e in expected]
assert [v.value.dtype for v in values] == [e.dtype for e in expected]
assert worker.advanced.shares and worker.advanced.stop_votes.number == 1
weight.value = weight.value + 1
worker.sync_params()
worker.barrier("all have trained")
worker.copy_to_local()
assert (weight.value == 13).all(), weight.value
worker.release_shared_params()

values[0].set_value(np.full((2, 3), rank, "f4"))
assert start_training(worker, "fit 2", "fit", values=values) == [0, 1, 2]
assert (values[0].value == 0).all() and not worker.advanced.shares and worker.advanced.stop_votes.number == 2
values[0].set_value(np.full((2, 3), rank, "f4"))
copy_values(values[:1], worker, root=2)
assert (values[0].value == 2).all()
""",
        workers=3,
    ).require_success()


def test_those_that_are_left_begin_without_the_one_that_is_gone(run_job):
    run_job(
        VARIABLE
        + """
w, steps = Variable("w", np.full(3, 0.1 + rank, "f4")), Variable("steps", np.int64(rank))
worker.barrier("all are there")
if rank == 0:
    worker.close()
else:
    worker.advanced.meet("without rank 0")
    ranks = start_training(worker, "fit", "fit", values=[w, steps])
    assert ranks == [1, 2]
    assert (w.value == np.float32(1.1)).all() and w.value.dtype == "f4"
    assert steps.value == 1 and steps.value.dtype == "i8"
    copy_first_values([w], worker, participants=ranks)
""",
        workers=3,
    ).require_success()


def test_other_values_and_purposes_are_refused_everywhere_and_nothing_is_changed(run_job):
    told = (
        run_job(
            VARIABLE
            + """
LONG = f"f({'x=1, ' * 50}policy={rank}, {'y=2, ' * 50}z)"
for name, length, purpose in (("length", 3 + rank, ""), ("purpose", 3, f"policy={rank}"), ("long purpose", 3, LONG)):
    w = Variable("w", np.full(length, rank, "f4"))
    try:
        start_training(worker, name, "fit", values=[w], purpose=purpose, rule=EASGD(), parameters=[np.ones(2)])
    except PlatoonError as exc:
        worker.report({f"{name} {rank}": str(exc)})
    assert (w.value == rank).all() and not worker.advanced.shares
"""
        )
        .require_success()
        .reported
    )
    assert "got w float32[3] as parameter 0, worker 1's is w float32[4]" in told["length 0"]
    assert "worker 0's is w float32[3]" in told["length 1"]
    assert "got policy=0, worker 1 has policy=1" in told["purpose 0"]
    assert "got policy=1, worker 0 has policy=0" in told["purpose 1"]
    part = "f(... x=1, x=1, x=1, x=1, x=1, policy={}, y=2, y=2, y=2, y=2, y=2, y=2, ..."
    assert f"got {part.format(0)}, worker 1 has {part.format(1)}: what they" in told["long purpose 0"]


def test_a_late_worker_is_refused_before_it_meets_anybody(run_job):
    told = (
        run_job(
            """
            import os, subprocess, sys
            from platoon_base import connect
            from platoon_base.errors import ConfigurationError
            from platoon_base.worker import start_training

            late = "PLATOON_RANK" not in os.environ
            with connect() as worker:
                if late:
                    try:
                        start_training(worker, "main loop 1", "main loop")
                    except ConfigurationError as exc:
                        worker.report({"late": str(exc)})
                else:
                    environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
                    subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
                    assert start_training(worker, "main loop 1", "main loop") == [0]
            """,
            workers=1,
        )
        .require_success()
        .reported
    )
    assert told["late"] == (
        "this worker joined late: the workers of a main loop count epochs together from its begin; launch the job "
        "with more workers"
    )
