"""Sums over hosts by gloo in place of the links, alone and in jobs, also when a rank fails. MPI's are in tests/hosts.

The hosts are pretended (helpers/pretended_hosts.py): on one machine, with one controller. Everything else is real.
"""

import itertools
import math
import os
import re
import time

import numpy as np
import pytest
from hosts_here import HostsGroup
from over_hosts import ends, over_hosts, require_lost
from scripts_here import script_path

pytestmark = [
    pytest.mark.keras,
    pytest.mark.skipif(
        os.environ.get("KERAS_BACKEND") != "torch", reason="needs torch: `make test` runs this in .nox/keras3"
    ),
]
TIMEOUT_S = 30
LARGE = 300_001  # elements, more than the links send at once


class Willing:
    """The other ranks may all still come."""

    def why_absent(self, ranks):
        return ""

    def moved(self, ranks):
        return -math.inf


@pytest.fixture(params=[(2, 2), (2, 1), (1, 1, 1)], ids=lambda workers: "+".join(map(str, workers)))
def group(request):
    liveness = [Willing() for _ in range(sum(request.param))]
    with HostsGroup(request.param, True, liveness, 1 << 16, key="", backend="gloo") as made:
        yield made


@pytest.fixture
def run_over(run_job):
    return over_hosts(run_job, keys=",", backend="gloo")


def test_sums_and_means_are_numpys_and_the_same_bits_everywhere(group):
    size = len(group.members)
    for dtype, op in itertools.product(("float32", "float64", "int32", "int64", "float16"), ("sum", "mean")):
        exact = [(np.arange(LARGE) % 50 + rank).astype(dtype) for rank in range(size)]
        results = group.run(lambda c, a=exact, op=op: c.all_reduce(a[c.rank], op, timeout_s=TIMEOUT_S))
        total = sum(a.astype("float64") for a in exact)
        expected = total if op == "sum" else total / size if dtype[0] == "f" else total // size
        for result in results:
            np.testing.assert_array_equal(result, expected.astype(dtype))
    rough = [np.random.default_rng(rank).normal(size=LARGE).astype("float32") for rank in range(size)]
    results = group.run(lambda c: c.all_reduce(rough[c.rank], timeout_s=TIMEOUT_S))
    np.testing.assert_allclose(results[0], sum(a.astype("float64") for a in rough), atol=1e-5)
    assert len({result.tobytes() for result in results}) == 1


def test_what_the_library_does_not_do_as_links_do_passes_by_links(group):
    size = len(group.members)
    arrays = [np.random.default_rng(rank).normal(size=LARGE).astype("float32") for rank in range(size)]
    arrays[0][7] = np.nan
    for op, function in (("max", np.maximum), ("min", np.minimum), ("prod", np.multiply)):
        results = group.run(lambda c, op=op: c.all_reduce(arrays[c.rank], op, timeout_s=TIMEOUT_S))
        for result in results:
            np.testing.assert_allclose(result, function.reduce(arrays), rtol=1e-6)
    small = group.run(lambda c: c.all_reduce(np.full(1000, c.rank, "uint8"), timeout_s=TIMEOUT_S))
    assert all((result == sum(range(size))).all() for result in small)
    gathered = group.run(lambda c: c.all_gather(arrays[c.rank], timeout_s=TIMEOUT_S))
    sent = group.run(lambda c: c.broadcast(arrays[c.rank].copy(), size - 1, timeout_s=TIMEOUT_S))
    parts = group.run(lambda c: c.reduce_scatter(np.full((size, LARGE), float(c.rank)), timeout_s=TIMEOUT_S))
    for each, last, part in zip(gathered, sent, parts):
        np.testing.assert_array_equal(each, arrays)
        np.testing.assert_array_equal(last, arrays[-1])
        assert (part == sum(range(size))).all()


def test_it_is_the_library_that_adds_large_arrays(group):
    added = []
    for library in group.libraries:
        begin = library.begin_sum
        library.begin_sum = lambda array, begin=begin: added.append(array.nbytes) or begin(array)
    for n in (1000, LARGE):
        group.run(lambda c, n=n: c.all_reduce(np.ones(n, np.float32), timeout_s=TIMEOUT_S))
    assert added == [4 * LARGE] * len(group.workers)


class Late:
    """A sum of the library that this rank learns of later."""

    def __init__(self, pending, late_s):
        self.pending, self.at = pending, time.monotonic() + late_s

    def done(self):
        return time.monotonic() > self.at and self.pending.done()

    def why_failed(self):
        return self.pending.why_failed()


def make_late(library, late_s):
    begin = library.begin_sum
    library.begin_sum = lambda array: Late(begin(array), late_s)


def test_a_sum_may_take_longer_than_the_timeout_since_a_library_tells_nothing_of_progress(group):
    make_late(group.libraries[1], 1.0)
    results = group.run(lambda c: c.all_reduce(np.ones(LARGE, np.float32), timeout_s=0.2))
    assert all((result == len(group.members)).all() for result in results)


def test_who_left_after_its_sum_has_come_is_not_missed(group):
    make_late(group.libraries[-1], 1.5)  # longer than what is waited for before a broken link counts

    def reduce_and_leave(member):
        found = member.all_reduce(np.ones(LARGE, np.float32), timeout_s=TIMEOUT_S)
        member.close()
        return found

    assert all((result == len(group.members)).all() for result in group.run(reduce_and_leave))


def test_a_library_that_cannot_be_used_on_one_host_ends_the_forming_on_all(run_over):
    for log in run_over("1+1", script_path("hosts_libraries_no_interface")).logs:
        assert re.search("ENDED .*no interface has that address", log), log


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "victim"), [("2+2", 3), ("2+2", 2), ("2+2", 0), ("1+1+1", 1)])
def test_a_killed_rank_ends_the_calls_of_all_hosts_and_is_named(run_over, workers, victim):
    require_lost(ends(run_over, workers, "killed", victim, n=2_000_000, first=2_000_000), victim)


@pytest.mark.slow
def test_a_rank_killed_while_the_library_adds_ends_the_call(run_over):
    """The first rank of host 1 ends between two looks whether the sum is there."""
    outcome = run_over("1+1", script_path("hosts_libraries_killed_while_it_adds"))
    assert re.search(r"ENDED WorkerLostError .*rank 1 (is lost|has left)", outcome.logs[0]), outcome.logs[0]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "victim"), [("2+2", 3), ("1+2", 0)])
@pytest.mark.parametrize(
    ("fault", "says"), [("refused", "refused its collective call 2"), ("differs", "the ranks differ")]
)
def test_a_refused_call_and_one_that_differs_end_those_of_all_hosts(run_over, workers, victim, fault, says):
    outcome = ends(run_over, workers, fault, victim, n=LARGE, first=LARGE)
    for rank, log in enumerate(outcome.logs):
        # Perhaps in the call before, of which a rank may not have the result yet; or it sees that the victim has gone
        # before it gets the reason from the victim's host.
        said = rf"({says}|rank {victim} (is lost|has left))"
        assert rank == victim or re.search(f"(ConfigurationError|WorkerLostError).*{said}", log), log


@pytest.mark.slow
def test_who_is_stopped_for_a_while_is_waited_for(run_over):
    outcome = ends(run_over, "2+2", "stopped", 2, n=3_000_000, first=3_000_000).require_success()
    assert all("WENT ON" in log for log in outcome.logs)
