"""Agreement on state that is not trained: each rule by hand, of workers in threads with a real coordinator."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from platoon_base.channels.inproc import InprocHub
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.encoding import encode
from platoon_base.coordination.messages import PROTOCOL, Hello
from platoon_base.shm.job_state import JobState
from platoon_base.worker import State, Worker, agree, make_equal
from platoon_base.worker.connection import AdvisoryLock, BackEnds, Connection, Identity

pytestmark = pytest.mark.base


class Value:
    """A variable."""

    name = "value"

    def __init__(self, value):
        self.value = np.asarray(value)

    def get_value(self, borrow=False):
        return self.value

    def set_value(self, value):
        assert value.dtype == self.value.dtype
        self.value = value


@pytest.fixture
def everyone():
    """Return a function that calls another one with each of these workers, at the same time."""
    size = 3
    job_state = JobState(bytearray(JobState.size_bytes(size)), rows=size, create=True)
    hub, workers = InprocHub(Coordinator(size), job_state), []
    for rank in range(size):
        channel = hub.connect()
        channel.request(encode(Hello(protocol=PROTOCOL, pid=os.getpid(), host="", device="cpu", rank=rank)), 10)
        identity = Identity(rank=rank, size=size, local_rank=rank, local_size=size, seed=0, device="cpu")
        lock = AdvisoryLock(lambda: True, lambda: None)
        workers.append(Worker(Connection(identity, channel, job_state, lock, BackEnds(lambda *_: None))))
    with ThreadPoolExecutor(size) as threads:
        yield lambda call, ranks=range(size): list(threads.map(call, [workers[rank] for rank in ranks]))
        list(threads.map(Worker.close, workers))


@pytest.mark.parametrize(
    ("rule", "dtype", "values", "weights", "base", "expected"),
    [
        ("mean", "float32", (1, 4, 10), (1, 1, 1), None, 5),
        ("mean", "float32", (1, 4, 10), (2, 1, 1), None, 4),
        ("mean", "float64", (1, 4, 10), (0, 1, 3), None, 8.5),
        ("mean", "complex64", (1 + 8j, 4, 10), (2, 1, 1), None, 4 + 4j),
        ("mean", "int32", (3, 3, 5), (1, 1, 1), None, 4),  # the nearest to 3 2/3
        ("sum", "float32", (1, 4, 10), (1, 1, 1), 1, 13),
        ("sum", "float32", (9, 4, 10), (0, 1, 1), 1, 13),
        ("sum", "int64", (2**60 + 1, 2**60, 2**60 + 2), (1, 1, 1), 2**60, 2**60 + 3),
        ("sum", "uint8", (4, 5, 3), (1, 1, 1), 5, 2),
        ("first", "int32", (1, 4, 10), (1, 1, 1), None, 1),
        ("first", "bool", (False, True, False), (0, 1, 1), None, True),
    ],
)
def test_workers_agree_by_the_rule(everyone, rule, dtype, values, weights, base, expected):
    variables = [Value(np.full((2, 3), value, dtype)) for value in values]
    base = None if base is None else np.full((2, 3), base, dtype)

    def call(worker):
        rank = worker.global_rank
        agree([State(variables[rank], rule, base)], worker, "state", float(weights[rank]))

    everyone(call)
    for variable in variables:
        np.testing.assert_array_equal(variable.value, np.full((2, 3), expected, dtype))


def test_without_a_worker_that_counts_all_keep_their_values(everyone):
    variables = [(Value(np.float32(rank)), Value(np.int32(rank))) for rank in range(3)]

    def call(worker):
        mean, first = variables[worker.global_rank]
        agree([State(mean, "mean"), State(first, "first")], worker, "state", 0.0)

    everyone(call)
    assert [(mean.value, first.value) for mean, first in variables] == [(0, 0), (1, 1), (2, 2)]


def test_those_left_get_the_first_value_of_what_differs(everyone):
    """Where none is lost, values go another way: adapters/test_keras_state.py."""
    same = [Value(np.arange(3)) for _ in range(3)]
    others = [Value(np.array([7, rank], "int64")) for rank in range(3)]
    unchanged = [variable.value for variable in same]
    everyone(Worker.close, [0])
    everyone(lambda worker: make_equal([same[worker.global_rank], others[worker.global_rank]], worker, "end"), [1, 2])
    assert [variable.value.tolist() for variable in others] == [[7, 0], [7, 1], [7, 1]]
    assert all(variable.value is value for variable, value in zip(same, unchanged))
