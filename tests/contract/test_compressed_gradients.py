"""All-reduces of gradients that are compressed between hosts: ranks are threads, links are real."""

import math

import numpy as np
import pytest
from hosts_here import HostsGroup

from platoon_base.collectives.hosts_exchange import DEPTH, SMALL_BYTES
from platoon_base.collectives.hosts_parts import chunk_bounds
from platoon_base.compression.codecs import ErrorFeedback
from platoon_base.errors import PlatoonError

pytestmark = pytest.mark.base

TIMEOUT_S = 60
CODECS = ["float16", "bfloat16", "int8", "int4", "int2"]
HOSTS = [(1, 1), (2, 2), (2, 1), (1, 1, 1)]  # ranks on each host
N = 300_017


class Patient:
    def why_absent(self, ranks):
        return ""

    def moved(self, ranks):
        return -math.inf


def group_of(workers, codec="int8", **options):
    return HostsGroup(workers, None, [Patient()] * sum(workers), compression=codec, **options)


def values_of(rank, step, n=N, dtype="f4"):
    random = np.random.default_rng([rank, step])
    return (random.standard_normal(n) * (1 + rank) * 1e-2).astype(dtype)


def alternating(hosts, codecs):
    """Parametrize with each codec on one of these numbers of ranks; the others are marked as a product."""
    cases = [
        pytest.param(workers, codec, marks=[pytest.mark.product] * ((i + j) % len(hosts) != 0))
        for i, workers in enumerate(hosts)
        for j, codec in enumerate(codecs)
    ]
    return pytest.mark.parametrize(("workers", "codec"), cases, ids=str)


class Averages:
    def __init__(self, group):
        self.group = group
        self.feedback = {member.rank: ErrorFeedback() for member in group.members}

    def __call__(self, value, op="mean"):
        def call(member):
            array = value(member.rank)
            return member.all_reduce(array, op, array, timeout_s=TIMEOUT_S, feedback=self.feedback[member.rank])

        return self.group.run(call)


def bytes_of(results):
    return {result.tobytes() for result in results}


@alternating(HOSTS, CODECS)
def test_all_ranks_have_the_same_bits_near_the_mean(workers, codec):
    with group_of(workers, codec) as group:
        averages = Averages(group)
        for step in range(3):
            results = averages(lambda rank: values_of(rank, step))  # noqa: B023
            assert len(bytes_of(results)) == 1
            exact = np.mean([values_of(rank, step) for rank in range(sum(workers))], axis=0)
            assert not np.array_equal(results[0], exact)
            bound = {"float16": 1e-2, "bfloat16": 1e-2, "int8": 2e-2, "int4": 0.4, "int2": 2.0}[codec]
            assert np.abs(results[0] - exact).max() < bound * np.abs(exact).max()


@pytest.mark.parametrize("codec", CODECS)
def test_what_came_and_what_is_kept_is_what_was_meant(codec):
    """Exactly, to the rounding of float32: two hosts of one rank, whose parts are the halves of each chunk."""
    n = 65_536
    with group_of((1, 1), codec) as group:
        averages = Averages(group)
        delivered, exact = np.zeros(n), np.zeros(n)
        for step in range(20):
            delivered += averages(lambda rank: values_of(rank, step, n))[0]  # noqa: B023
            exact += np.mean([values_of(rank, step, n).astype("f8") for rank in range(2)], axis=0)
        kept = [averages.feedback[rank].latest.astype("f8") for rank in range(2)]
    half = n // 2
    owed = np.concatenate([kept[0][:half] + kept[1][:half] / 2, kept[1][half:] + kept[0][half:] / 2])
    assert np.abs(owed).max() > 0
    np.testing.assert_allclose(delivered + owed, exact, atol=1e-6 * 20 * np.abs(exact).max())
    assert np.abs(delivered - exact).max() > 10 * np.abs(delivered + owed - exact).max()


@alternating([(1, 1), (2, 1)], CODECS)
def test_values_that_are_not_finite_stay_so_and_end_with_their_step(workers, codec):
    bad = {1000: np.nan, 70_001: np.inf, N - 1: -np.inf}
    with group_of(workers, codec) as group:
        averages = Averages(group)

        def with_bad(rank):
            array = values_of(rank, 0)
            if rank == 1:
                array[list(bad)] = list(bad.values())
            return array

        results = averages(with_bad)
        assert len(bytes_of(results)) == 1
        assert np.flatnonzero(~np.isfinite(results[0])).tolist() == list(bad)
        after = averages(lambda rank: values_of(rank, 1))
        assert len(bytes_of(after)) == 1
        assert np.isfinite(after[0]).all()


@pytest.mark.parametrize("dtype", ["f2", "f8"])
def test_other_float_types_are_compressed_too(dtype):
    with group_of((2, 1)) as group:
        results = Averages(group)(lambda rank: values_of(rank, 0, dtype=dtype))
        exact = np.mean([values_of(rank, 0, dtype=dtype).astype("f8") for rank in range(3)], axis=0)
        assert results[0].dtype == dtype
        assert len(bytes_of(results)) == 1
        assert 1e-4 < np.abs(results[0] - exact).max() / np.abs(exact).max() < 0.02


def test_other_calls_are_exact():
    with group_of((2, 1)) as group, group_of((2, 1), "none") as plain:
        for op, dtype in [("max", "f4"), ("prod", "f4"), ("sum", "i4")]:
            with_feedback, without = (
                Averages(each)(lambda rank: (values_of(rank, 0) * 100).astype(dtype), op)  # noqa: B023
                for each in (group, plain)
            )
            assert bytes_of(with_feedback) == bytes_of(without)
        exact = bytes_of(Averages(plain)(lambda rank: values_of(rank, 0)))
        assert bytes_of(group.run(lambda m: m.all_reduce(values_of(m.rank, 0), "mean", timeout_s=TIMEOUT_S))) == exact
        small = SMALL_BYTES // 4
        few = [bytes_of(Averages(each)(lambda rank: values_of(rank, 0, small))) for each in (group, plain)]
        assert few[0] == few[1]


@pytest.mark.parametrize("codec", ["topk(0.1)", "none"])
def test_top_k_leaves_gradients_exact(codec):
    with group_of((1, 1), codec) as group:
        results = Averages(group)(lambda rank: values_of(rank, 0))
        np.testing.assert_array_equal(results[0], (values_of(0, 0) + values_of(1, 0)) / np.float32(2))


@pytest.mark.parametrize("workers", [(1, 1), (1, 1, 1)], ids=str)
def test_many_chunks_follow_one_another(workers):
    """More than are in flight at a time, with a last one of another size."""
    n = 3 * DEPTH * (1 << 18) + 12_345
    assert len(chunk_bounds(n, 4, 64)) > DEPTH + 1
    with group_of(workers) as group:
        averages = Averages(group)
        for step in range(2):
            results = averages(lambda rank: values_of(rank, step, n))  # noqa: B023
            assert len(bytes_of(results)) == 1
            exact = np.mean([values_of(rank, step, n) for rank in range(len(workers))], axis=0)
            assert 0 < np.abs(results[0] - exact).max() < 2e-2 * np.abs(exact).max()


@pytest.mark.parametrize("op", ["median", None])
def test_a_wrong_operation_ends_the_call_of_all_ranks(op):
    with group_of((1, 1)) as group:

        def call(member):
            wrong = member.rank == 1
            with pytest.raises(PlatoonError, match="got op=" if wrong else "rank 1.*got op="):
                member.all_reduce(
                    values_of(0, 0), op if wrong else "mean", timeout_s=TIMEOUT_S, feedback=ErrorFeedback()
                )

        group.run(call)


def test_another_shape_begins_from_zero():
    with group_of((1, 1), "int2") as group:
        averages = Averages(group)
        first = averages(lambda rank: values_of(rank, 0))[0]
        averages(lambda rank: values_of(rank, 0))
        averages(lambda rank: values_of(rank, 1, 2 * N))
        assert np.array_equal(averages(lambda rank: values_of(rank, 0))[0], first)


def test_ranks_that_differ_in_it_learn_so():
    with group_of((1, 1)) as group:

        def call(member):
            feedback = ErrorFeedback() if member.rank else None
            with pytest.raises(PlatoonError, match=r"differ in collective call 1: .*compressed between hosts"):
                member.all_reduce(values_of(member.rank, 0), timeout_s=TIMEOUT_S, feedback=feedback)

        group.run(call)
