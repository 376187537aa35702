"""One contract for all collectives of the host, against NumPy on all inputs; ranks are threads or real processes."""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hosts_here import HostsGroup, Ranks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interrupting import at_instruction

from platoon_base.collectives import host
from platoon_base.collectives.base import OPS
from platoon_base.collectives.host import LOCK_BYTE, HostCollective
from platoon_base.collectives.host_exchange import CHUNK_BYTES, DIRECT_BYTES, HAVE_FUSED, HAVE_NUMPY, FusedExchange
from platoon_base.collectives.local import LocalCollective
from platoon_base.collectives.staged import StagedCollective
from platoon_base.dtypes import COLLECTIVE
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, PlatoonError, WorkerLostError
from platoon_base.job.files import segment_prefix
from platoon_base.shm.segments import Segment
from platoon_base.system.process import awake

pytestmark = pytest.mark.base

TIMEOUT_S = 60  # never reached by a test that passes
SMALL = 4096  # bytes of a slot, so that small arrays take several steps
numbers = itertools.count()

FORMS = [
    pytest.param(True, id="c", marks=pytest.mark.skipif(not HAVE_FUSED, reason="no C extension")),
    pytest.param(False, id="numpy", marks=pytest.mark.skipif(not HAVE_NUMPY, reason="no NumPy form here")),
]
BACK_ENDS = [pytest.param((LocalCollective, 1), id="local-1")] + [
    pytest.param(
        (form.values[0], size),
        id=f"{form.id}-{size}",
        marks=[*form.marks, *([pytest.mark.product] if f"{form.id}-{size}" in ("c-1", "numpy-1", "numpy-2") else [])],
    )
    for form in FORMS
    for size in (1, 2, 3)
]
HOSTS = [(2, 1), (1, 1, 1)]  # ranks on each host
BACK_ENDS += [
    pytest.param((HostsGroup, workers), id=f"hosts-{'+'.join(map(str, workers))}", marks=FORMS[0].marks)
    for workers in HOSTS
]


class Willing:
    """The other ranks may all still come; counts how often it was asked."""

    def __init__(self):
        self.asked = threading.Semaphore(0)

    def why_absent(self, ranks):
        self.asked.release()
        return ""

    def moved(self, ranks):
        return -math.inf


class Slow(Willing):
    """The other ranks go on until they have been asked for so often."""

    def __init__(self, looks):
        super().__init__()
        self.looks, self.last = looks, -math.inf

    def moved(self, ranks):
        if self.looks:
            self.looks -= 1
            self.last = awake()
        return self.last


class Gone:
    def __init__(self, rank=None):
        self.rank = rank

    def why_absent(self, ranks):
        if self.rank is not None and self.rank not in ranks:
            return ""
        return f"rank {', '.join(map(str, ranks))} was killed by signal 9"

    def moved(self, ranks):
        return -math.inf


class Group(Ranks):
    def __init__(self, size, forms, chunk_bytes=SMALL, liveness=None, ranks=None):
        self.name = f"{segment_prefix()}test{os.getpid()}-group{next(numbers)}"
        self.workers = [size]
        self.liveness = liveness or [Willing() for _ in range(size)]
        ranks, members = ranks or range(size), []
        for i, fused in zip(range(size), forms):
            make = HostCollective.attach if i else functools.partial(HostCollective.create, chunk_bytes=chunk_bytes)
            members.append(make(self.name, ranks, i, self.liveness[i], fused=fused))
        super().__init__(members)


class Alone(Ranks):
    workers = (1,)

    def __init__(self):
        super().__init__([LocalCollective()])


@pytest.fixture(params=BACK_ENDS)
def group(request):
    form, size = request.param
    if form is HostsGroup:
        made = HostsGroup(size, True, [Willing() for _ in range(sum(size))], SMALL)
    else:
        made = Alone() if form is LocalCollective else Group(size, [form] * size)
    with made:
        yield made


def make_over_hosts(size, liveness=None, chunk_bytes=SMALL, ranks=None):
    """Make a group over two hosts, of which the first has one rank more if they cannot have the same."""
    if size == 1:
        return Group(1, [True])
    liveness = liveness or [Willing() for _ in range(size)]
    return HostsGroup((size - size // 2, size // 2), True, liveness, chunk_bytes, ranks)


@pytest.fixture(params=[*FORMS, pytest.param("hosts", marks=FORMS[0].marks)])
def make(request):
    if request.param == "hosts":
        return make_over_hosts
    return lambda size, **options: Group(size, [request.param] * size, **options)


@pytest.fixture(params=FORMS)
def make_here(request):
    return lambda size, **options: Group(size, [request.param] * size, **options)


def values(seed, shape, dtype):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.asarray(rng.normal(scale=3, size=shape), dtype=dtype)
    limits = np.iinfo(dtype)
    return np.asarray(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True))


def oracle(arrays, op, workers=None):
    """Rank after rank on each host, then host after host.

    Float16 in float32 and rounded once; integers wrap around and are divided toward zero.
    """
    dtype = arrays[0].dtype
    wide = np.float32 if dtype == np.float16 else dtype
    function = {"prod": np.multiply, "max": np.maximum, "min": np.minimum}.get(op, np.add)
    ends = list(itertools.accumulate(workers or [len(arrays)]))
    with np.errstate(all="ignore"):
        hosts = [arrays[start:end] for start, end in zip([0, *ends], ends)]
        total = functools.reduce(function, [functools.reduce(function, [a.astype(wide) for a in h]) for h in hosts])
        if op == "mean" and dtype.kind == "f":
            total = np.divide(total, len(arrays), dtype=wide)
        elif op == "mean":
            exact = [(abs(int(v)) // len(arrays)) * (1 if v >= 0 else -1) for v in np.ravel(total)]
            total = np.array(exact, dtype=object).reshape(np.shape(total))
        return np.asarray(total).astype(dtype)


def require_equal(results, expected):
    for result in results:
        assert result.dtype == expected.dtype
        assert result.shape == expected.shape
        np.testing.assert_array_equal(result, expected)
        assert result.tobytes() == results[0].tobytes()


SHAPES = [(), (0,), (1,), (7, 3), (2, 0, 5), (1025,), (3, 2001)]


def test_all_reduce_is_numpys(group):
    size = len(group.members)
    for dtype, op, shape in itertools.product(COLLECTIVE, OPS, SHAPES):
        arrays = [values(rank, shape, dtype) for rank in range(size)]
        results = group.run(lambda c, a=arrays, op=op: c.all_reduce(a[c.rank], op, timeout_s=TIMEOUT_S))
        require_equal(results, oracle(arrays, op, group.workers))


def test_nan_and_infinity_go_through(group):
    special = [0.0, 1.0, -2.0, np.inf, -np.inf, np.nan, 60000.0, 6e-8]
    for dtype, op in itertools.product(["float16", "float32", "float64"], ["max", "min", "sum", "mean"]):
        pairs = np.array(list(itertools.product(special, repeat=4)), dtype=dtype).T
        arrays = [np.tile(row, 2) for row in pairs][: len(group.members)]
        results = group.run(lambda c, a=arrays, op=op: c.all_reduce(a[c.rank], op, timeout_s=TIMEOUT_S))
        require_equal(results, oracle(arrays, op, group.workers))


@pytest.mark.skipif(not HAVE_FUSED, reason="no C extension")
def test_every_float16_is_converted_as_numpy_does():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    shuffled = np.random.default_rng(0).permutation(every)
    with Group(2, [True] * 2) as group:
        for arrays in ([every, np.zeros_like(every)], [every, shuffled]):
            results = group.run(lambda c, a=arrays: c.all_reduce(a[c.rank], timeout_s=TIMEOUT_S))
            require_equal(results, oracle(arrays, "sum"))


@pytest.mark.parametrize("shape", [(), (70, 60)])
def test_all_reduce_in_place_and_into_out(group, shape):
    arrays = [values(rank, shape, "float32") for rank in range(len(group.members))]
    expected = oracle(arrays, "sum", group.workers)

    def call(c):
        own, other, out = arrays[c.rank].copy(), arrays[c.rank].copy(), np.empty(shape, np.float32)
        assert c.all_reduce(own, out=own, timeout_s=TIMEOUT_S) is own
        assert c.all_reduce(other, "+", out[...], timeout_s=TIMEOUT_S) is not other
        c.all_reduce(other, out=out, timeout_s=TIMEOUT_S)
        np.testing.assert_array_equal(other, arrays[c.rank])
        return [own, out]

    for results in group.run(call):
        require_equal(results, expected)


def test_arrays_may_lie_as_they_like(group):
    size = len(group.members)
    arrays = [values(rank, (60, 50), "float32") for rank in range(size)]

    def call(c):
        mine = arrays[c.rank]
        strided, fortran = np.repeat(mine, 2, axis=1)[:, ::2], np.asfortranarray(mine)
        unaligned = np.frombuffer(b"x" + mine.tobytes(), np.uint8)[1:].view(np.float32).reshape(mine.shape)
        out = np.zeros((50, 60), np.float32).T
        results = [c.all_reduce(array, timeout_s=TIMEOUT_S) for array in (strided, fortran, unaligned)]
        results.append(c.all_reduce(strided, out=out, timeout_s=TIMEOUT_S).copy())
        results.append(c.all_reduce(strided, out=strided, timeout_s=TIMEOUT_S).copy())
        sent = c.broadcast(np.asfortranarray(mine), root=size - 1, timeout_s=TIMEOUT_S)
        return results, sent

    for results, sent in group.run(call):
        require_equal(results, oracle(arrays, "sum", group.workers))
        require_equal([sent], arrays[-1])


def test_the_other_calls_are_numpys(group):
    size = len(group.members)
    for dtype, shape in itertools.product(COLLECTIVE, SHAPES):
        arrays = [values(rank, (size, *shape), dtype) for rank in range(size)]

        def call(c, arrays=arrays, shape=shape):
            mine = arrays[c.rank]
            c.barrier(timeout_s=TIMEOUT_S)
            gathered = c.all_gather(mine[0, ...], timeout_s=TIMEOUT_S)
            scattered = c.reduce_scatter(mine, "mean", timeout_s=TIMEOUT_S)
            target = np.empty(shape, mine.dtype)
            assert c.reduce_scatter(mine, "max", target, timeout_s=TIMEOUT_S) is target
            sent = [c.broadcast(mine.copy(), root, timeout_s=TIMEOUT_S) for root in range(size)]
            return gathered, scattered, target, sent

        for rank, (gathered, scattered, target, sent) in enumerate(group.run(call)):
            require_equal([gathered], np.stack([a[0] for a in arrays]))
            require_equal([scattered], oracle([a[rank] for a in arrays], "mean", group.workers))
            require_equal([target], oracle([a[rank] for a in arrays], "max", group.workers))
            for root in range(size):
                require_equal([sent[root]], arrays[root])


def test_more_than_all_slots_hold(make):
    size = 3
    arrays = [values(rank, (1_000_003,), "float32") for rank in range(size)]
    with make(size, chunk_bytes=CHUNK_BYTES) as group:
        require_equal(
            group.run(lambda c: c.all_reduce(arrays[c.rank], timeout_s=TIMEOUT_S)), oracle(arrays, "sum", group.workers)
        )


@pytest.mark.parametrize("size", [2, 3])
def test_quick_calls_do_not_overtake_each_other(make, size):
    def call(c):
        for i in range(1000):
            n = 1 + i * 37 % 2500 if i % 10 == 0 else 1 + i % 300
            array = np.full(n, i * (c.rank + 1), np.int32)
            c.all_reduce(array, out=array, timeout_s=TIMEOUT_S)
            if (array != i * size * (size + 1) // 2).any():
                return i
        return None

    with make(size) as group:
        assert group.run(call) == [None] * size


def called(c, kind, *arguments):
    return getattr(c, kind)(*arguments, timeout_s=TIMEOUT_S)


a_call = st.tuples(
    st.sampled_from(["all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"]),
    st.sampled_from(OPS),
    st.integers(0, 9000),
)


@pytest.mark.parametrize("forms", [[True, True], [True, True, True], [True, False, True]], ids=["2", "3", "mixed"])
@pytest.mark.skipif(not (HAVE_FUSED and HAVE_NUMPY), reason="one of the forms is missing")
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls=st.lists(a_call, max_size=12))
def test_any_calls_in_a_row(forms, calls):
    size = len(forms)
    arrays = [
        [values(100 * i + rank, (size, n), "float32") for rank in range(size)] for i, (_, _, n) in enumerate(calls)
    ]

    def do(c, kind, op, array, root):
        arguments = {"broadcast": (array.copy(), root), "all_gather": (array,), "barrier": ()}
        return called(c, kind, *arguments.get(kind, (array, op)))

    with Group(size, forms) as group:
        results = group.run(
            lambda c: [do(c, kind, op, arrays[i][c.rank], i % size) for i, (kind, op, _) in enumerate(calls)]
        )
    for i, (kind, op, _) in enumerate(calls):
        mine = [result[i] for result in results]
        if kind == "all_reduce":
            require_equal(mine, oracle(arrays[i], op))
        elif kind == "broadcast":
            require_equal(mine, arrays[i][i % size])
        elif kind == "all_gather":
            require_equal(mine, np.stack(arrays[i]))
        elif kind == "reduce_scatter":
            for rank in range(size):
                require_equal([mine[rank]], oracle([a[rank] for a in arrays[i]], op))


@pytest.mark.skipif(not (HAVE_FUSED and HAVE_NUMPY), reason="one of the forms is missing")
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_both_forms_split_an_all_reduce_from_the_same_size_on(more):
    elements = DIRECT_BYTES // 4 + more
    arrays = [values(rank, (elements,), "float32") for rank in range(3)]
    with Group(3, [True, False, True]) as group:
        results = group.run(lambda c: c.all_reduce(arrays[c.rank], timeout_s=TIMEOUT_S))
    require_equal(results, oracle(arrays, "sum"))


@pytest.mark.parametrize("size", [2, 3])
def test_a_call_goes_on_after_every_wait_in_vain(make, size, monkeypatch):
    monkeypatch.setattr(host, "PATIENCE_S", 0.0)
    monkeypatch.setattr(host, "MAX_PATIENCE_S", 0.0)
    monkeypatch.setattr(host, "FusedExchange", functools.partial(FusedExchange, roomy_spins=0, crowded_spins=0))
    arrays = [values(rank, (30_001,), "float32") for rank in range(size)]

    def call(c):
        c.barrier(timeout_s=TIMEOUT_S)
        return [c.all_reduce(arrays[c.rank], op, timeout_s=TIMEOUT_S) for op in ("sum", "prod")]

    with make(size) as group:
        futures = group.start(call, group.members[0])
        assert group.liveness[0].asked.acquire(timeout=TIMEOUT_S)
        futures += group.start(call, *group.members[1:])
        sums, products = zip(*(future.result() for future in futures))
    require_equal(sums, oracle(arrays, "sum", group.workers))
    require_equal(products, oracle(arrays, "prod", group.workers))


F32 = np.zeros(6, np.float32)
DIFFERENT = {
    "op": [("all_reduce", F32, "sum"), ("all_reduce", F32, "max")],
    "dtype": [("all_reduce", F32), ("all_reduce", F32.astype(np.int32))],
    "size": [("all_reduce", F32), ("all_reduce", np.zeros(99999, np.float32))],
    "shape": [("all_reduce", F32), ("all_reduce", F32.reshape(2, 3))],
    "many dimensions": [("all_reduce", np.zeros((1, 2, 1, 2, 1, *last))) for last in ((2, 3), (6, 2))],
    "kind": [("all_gather", F32), ("barrier",)],
    "root": [("broadcast", F32.copy(), 0), ("broadcast", F32.copy(), 1)],
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_calls_are_refused_on_all_ranks(make, what):
    common, other = DIFFERENT[what]
    with make(3, ranks=(2, 5, 7)) as group:
        group.run(lambda c: c.all_reduce(F32, timeout_s=TIMEOUT_S))
        futures = group.start(lambda c: called(c, *(other if c.rank == 1 else common)))
        errors = [future.exception() for future in futures]
        assert [type(error) for error in errors] == [ConfigurationError] * 3
        for error in errors:
            assert "differ in collective call 2" in str(error)
            assert "rank 5 called" in str(error)
            assert what != "kind" or "rank 2 called all_gather(float32 of shape (6,))" in str(error)
            assert what != "kind" or "rank 5 called barrier()" in str(error)
        for future in group.start(lambda c: c.barrier(timeout_s=TIMEOUT_S)):
            with pytest.raises(ConfigurationError, match="differ in collective call 2"):
                future.result()


def test_a_deadline_names_who_is_missing(make):
    with make(3, ranks=(0, 4, 6)) as group:
        waiting = group.start(lambda c: c.all_reduce(F32, timeout_s=0.2), group.members[0], group.members[2])
        errors = [future.exception() for future in waiting]
        # Whichever comes first breaks the group for the other.
        assert any(isinstance(error, CollectiveTimeoutError) for error in errors)
        for error in errors:
            assert isinstance(error, (CollectiveTimeoutError, WorkerLostError))
            assert "for rank 4 (no progress so far):" in str(error)
        with pytest.raises(WorkerLostError, match="waited 0.2 s for rank 4"):
            group.members[1].all_reduce(F32, timeout_s=TIMEOUT_S)


def test_a_peer_that_is_absent_ends_the_wait(make):
    liveness = [Gone(6), Gone(6), Willing()]
    with make(3, liveness=liveness, ranks=(0, 4, 6)) as group:
        waiting = group.start(lambda c: c.all_reduce(F32, "max", timeout_s=TIMEOUT_S), *group.members[:2])
        for future in waiting:
            with pytest.raises(WorkerLostError, match="rank 6 was killed by signal 9") as caught:
                future.result()
            call = r"collective call 1 of rank [04], all_reduce\(float32 of shape \(6,\), 'max'\)"
            assert re.search(call, str(caught.value))
        with pytest.raises(WorkerLostError, match="rank 6 was killed"):
            group.members[0].barrier(timeout_s=TIMEOUT_S)


def test_who_closes_is_not_waited_for(make):
    with make(2) as group:
        group.run(lambda c: c.all_reduce(F32, timeout_s=TIMEOUT_S))
        group.members[1].close()
        group.members[1].close()
        with pytest.raises(WorkerLostError, match="rank 1 closed"):
            group.members[0].all_reduce(F32, timeout_s=TIMEOUT_S)
        with pytest.raises(ConfigurationError, match="after close"):
            group.members[1].barrier(timeout_s=TIMEOUT_S)


def twice(call):
    """Over hosts, a rank may have sent all it has before it fails in a wait: the call of another ends, not the next."""
    call()
    call()


def test_an_interrupt_breaks_the_group(make):
    class Interrupting:
        def why_absent(self, ranks):
            signal.raise_signal(signal.SIGINT)
            return ""

    with make(2, liveness=[Interrupting(), Willing()]) as group:
        with pytest.raises(KeyboardInterrupt):
            group.members[0].all_reduce(F32, timeout_s=TIMEOUT_S)
        with pytest.raises(WorkerLostError, match="of rank 0.* ended with KeyboardInterrupt"):
            twice(lambda: group.members[1].all_reduce(F32, timeout_s=TIMEOUT_S))


def test_a_rank_that_left_after_its_call_failed_is_not_the_reason(make):
    """What ended its call is told to the others before it goes, and is what they are told."""

    class LeftMeanwhile:
        def why_absent(self, ranks):
            with pytest.raises(ConfigurationError, match="median"):
                group.members[1].all_reduce(F32, "median", timeout_s=TIMEOUT_S)
            group.members[1].close()
            return "rank 1 has left the job"

    why = "refused its collective call 1.*median"
    with make(2, liveness=[LeftMeanwhile(), Willing()]) as group, pytest.raises(PlatoonError, match=why):
        group.members[0].all_reduce(F32, timeout_s=TIMEOUT_S)


def test_who_is_slow_is_waited_for_and_who_stands_still_is_named(make):
    """The deadline counts from the last sign of progress of the ranks that are missing."""
    slow = Slow(looks=5)
    with make(2, liveness=[slow, Willing()]) as group:
        began = awake()
        with pytest.raises(CollectiveTimeoutError, match=r"waited 0.2 s for rank 1 \(no progress for 0 s\)"):
            group.members[0].all_reduce(F32, timeout_s=0.2)
        assert slow.looks == 0
        assert awake() > max(began + 0.2, slow.last + 0.2)


def open_files(name):
    """Count the descriptors that this process has of a segment, whose name may be gone."""
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(str(link).startswith(f"/dev/shm{name}") for link in links)


def test_a_close_from_within_a_call_ends_it(make):
    class Closing:
        def why_absent(self, ranks):
            group.members[0].close()
            with pytest.raises(ConfigurationError, match="got a call"):
                group.members[0].barrier(timeout_s=TIMEOUT_S)
            return ""

    with make(2, liveness=[Closing(), Willing()]) as group:
        before = open_files(group.name)
        with pytest.raises(WorkerLostError, match="closed this collective"):
            group.members[0].all_reduce(F32, timeout_s=TIMEOUT_S)
        assert open_files(group.name) < before
        assert not os.path.exists("/dev/shm" + group.name)
        with pytest.raises(WorkerLostError, match="closed"):
            twice(lambda: group.members[1].all_reduce(F32, timeout_s=TIMEOUT_S))
        with pytest.raises(ConfigurationError, match="after close"):
            group.members[0].barrier(timeout_s=TIMEOUT_S)


def test_a_second_thread_is_refused_and_a_close_ends_the_wait(make):
    with make(2) as group:
        first, second = group.members
        (future,) = group.start(lambda c: c.barrier(timeout_s=TIMEOUT_S), first)
        assert group.liveness[0].asked.acquire(timeout=TIMEOUT_S)
        with pytest.raises(ConfigurationError, match="another thread"):
            first.barrier(timeout_s=TIMEOUT_S)
        first.close()
        with pytest.raises(WorkerLostError, match="closed this collective"):
            future.result()
        with pytest.raises(WorkerLostError, match="closed this collective"):
            twice(lambda: second.barrier(timeout_s=TIMEOUT_S))


PARTS = np.zeros((2, 6), np.float32)
WRONG = {
    "a list": lambda c: c.all_reduce([1.0], timeout_s=1),
    "dtype": lambda c: c.all_reduce(np.zeros(2, np.complex64), timeout_s=1),
    "byte order": lambda c: c.all_reduce(np.zeros(2, ">f4"), timeout_s=1),
    "op": lambda c: c.all_reduce(F32, "median", timeout_s=1),
    "op of no name": lambda c: c.all_reduce(F32, None, timeout_s=1),
    "root": lambda c: c.broadcast(F32.copy(), 2, timeout_s=1),
    "shape of out": lambda c: c.all_reduce(F32, out=np.zeros(5, np.float32), timeout_s=1),
    "dtype of out": lambda c: c.all_gather(F32, np.zeros((2, 6)), timeout_s=1),
    "parts": lambda c: c.reduce_scatter(np.zeros((3, 4)), timeout_s=1),
    "a scalar's parts": lambda c: c.reduce_scatter(np.zeros(()), timeout_s=1),
    "op in a list": lambda c: c.all_reduce(F32, ["sum"], timeout_s=1),
    "op in an array": lambda c: c.reduce_scatter(np.zeros((c.size, 4)), np.array(["sum"]), timeout_s=1),
    "root of no number": lambda c: c.broadcast(F32.copy(), "a", timeout_s=1),
    "root of no integer": lambda c: c.broadcast(F32.copy(), 0.0, timeout_s=1),
    "negative root": lambda c: c.broadcast(F32.copy(), -1, timeout_s=1),
    "timeout of none": lambda c: c.all_reduce(F32, timeout_s=None),
    "timeout in words": lambda c: c.all_gather(F32, timeout_s="1"),
    "timeout of no number": lambda c: c.barrier(timeout_s=float("nan")),
    "negative timeout": lambda c: c.broadcast(F32.copy(), timeout_s=-1.0),
    "timeout beyond floats": lambda c: c.barrier(timeout_s=10**400),
    "out of a list": lambda c: c.all_reduce(F32, out=[0.0] * 6, timeout_s=1),
    "out of a device": lambda c: c.all_reduce(F32, out=DeviceArray(F32), timeout_s=1),
    "masked": lambda c: c.all_reduce(np.ma.masked_less(F32, 1), timeout_s=1),
    "masked broadcast": lambda c: c.broadcast(np.ma.masked_less(F32, 1), timeout_s=1),
    "masked out": lambda c: c.all_reduce(F32, out=np.ma.zeros(6, np.float32), timeout_s=1),
    "overlap": lambda c: c.all_reduce(F32[:4], out=F32[2:], timeout_s=1),
    "overlap in reverse order": lambda c: c.all_reduce(F32, out=F32[::-1], timeout_s=1),
    "overlap of parts": lambda c: c.all_gather(PARTS[0], PARTS, timeout_s=1),
    "overlap with a part": lambda c: c.reduce_scatter(PARTS[: c.size], out=PARTS[0], timeout_s=1),
    "a scalar": lambda c: c.all_reduce(np.float64(1), timeout_s=1),
    "long double": lambda c: c.all_reduce(np.zeros(2, np.longdouble), timeout_s=1),
    "read-only broadcast of root": lambda c: c.broadcast(np.broadcast_to(np.float32(0), 6), timeout_s=1),
    "read-only out": lambda c: c.all_reduce(F32, out=np.broadcast_to(np.float32(0), 6), timeout_s=1),
    "read-only broadcast": lambda c: c.broadcast(np.broadcast_to(np.float32(0), 6), c.size - 1, timeout_s=1),
}


def test_what_cannot_work_is_refused_and_breaks_the_group(make):
    for wrong in WRONG.values():
        with make(2, ranks=(3, 5)) as group:
            waiting = group.start(lambda c: c.all_reduce(F32, timeout_s=TIMEOUT_S), group.members[1])
            with pytest.raises(ConfigurationError, match="^got"):
                wrong(group.members[0])
            # Or else these two calls would meet, which are not the same of the script.
            for future in waiting + group.start(lambda c: c.all_reduce(F32, timeout_s=TIMEOUT_S), group.members[0]):
                with pytest.raises(ConfigurationError, match="rank 3 refused its collective call 1.*: got"):
                    future.result()


def test_a_group_of_one_refuses_the_same_and_goes_on(make):
    with make(1) as group, Alone() as alone:
        for wrong, member in itertools.product(WRONG.values(), group.members + alone.members):
            with pytest.raises(ConfigurationError, match="^got"):
                wrong(member)
            require_equal([member.all_reduce(F32 + 1, timeout_s=TIMEOUT_S)], F32 + 1)


def test_a_refusal_while_another_thread_is_in_a_call_breaks_the_next(make):
    with make(2) as group:
        first, second = group.members
        (future,) = group.start(lambda c: c.all_reduce(F32 + 1, timeout_s=TIMEOUT_S), first)
        assert group.liveness[0].asked.acquire(timeout=TIMEOUT_S)
        for call in (lambda: first.barrier(timeout_s=TIMEOUT_S), lambda: first.all_reduce(F32, "no", timeout_s=1)):
            with pytest.raises(ConfigurationError, match="got"):
                call()
        require_equal([second.all_reduce(F32 + 1, timeout_s=TIMEOUT_S), future.result()], F32 + 2)
        for member in group.members:
            with pytest.raises(ConfigurationError, match="rank 0 refused"):
                member.barrier(timeout_s=TIMEOUT_S)


def test_a_second_call_within_one_leaves_a_group_of_one_whole(make):
    with make(1) as group:
        (c,) = group.members
        results = []

        def call():
            results.append(c.all_reduce(F32 + 1, timeout_s=TIMEOUT_S))

        def interrupt():
            with pytest.raises(ConfigurationError, match="during another call of this group"):
                c.barrier(timeout_s=TIMEOUT_S)

        call()  # from now on the files of the exchange are entered only for the exchange itself
        for _ in range(2):
            assert at_instruction(1, call, interrupt, "host_exchange")
        require_equal(results, F32 + 1)


def test_an_endless_deadline_and_numbers_of_numpy_are_taken(group):
    for timeout_s in (float("inf"), np.float32(TIMEOUT_S), TIMEOUT_S):
        sent = group.run(lambda c, t=timeout_s: c.broadcast(F32 + c.rank, np.int64(0), timeout_s=t))
        require_equal(sent, F32)


def test_a_stopped_rank_that_holds_the_lock_keeps_nobody(make_here):
    with make_here(2, liveness=[Gone(), Willing()]) as group, Segment.attach(group.name) as stopped:
        assert stopped.try_lock(LOCK_BYTE)
        with pytest.raises(WorkerLostError, match="was killed by signal 9"):
            group.members[0].barrier(timeout_s=TIMEOUT_S)
        with pytest.raises(WorkerLostError, match="the reason is unknown"):
            group.members[1].barrier(timeout_s=TIMEOUT_S)


def test_groups_that_cannot_be_are_refused(make_here):
    with make_here(2) as group, Segment.create(f"{group.name}-other", 100_000) as other:
        for ranks, index in (((), 0), ((1, 0), 0), ((0, 0), 0), ((0, 1), 2), ((0, 1), -1)):
            with pytest.raises(ConfigurationError, match="got"):
                HostCollective.create(f"{group.name}-more", ranks, index, Willing())
        with pytest.raises(ConfigurationError, match="chunk_bytes"):
            HostCollective.create(f"{group.name}-more", (0, 1), 0, Willing(), chunk_bytes=5000)
        with pytest.raises(ConfigurationError, match="its ranks is"):
            HostCollective.attach(group.name, (0, 2), 1, Willing())
        with pytest.raises(ConfigurationError, match="something else"):
            HostCollective.attach(other.name, (0, 1), 1, Willing())
        with pytest.raises(ConfigurationError, match="cannot open shared memory"):
            HostCollective.attach(f"{group.name}-more", (0, 1), 1, Willing())
        Segment.unlink(other.name)


def test_the_name_can_go_before_the_group(make_here):
    with make_here(2) as group:
        for member in group.members:
            member.unlink()
        assert not os.path.exists("/dev/shm" + group.name)
        require_equal(group.run(lambda c: c.all_reduce(F32 + 1, timeout_s=TIMEOUT_S)), F32 + 2)


def test_without_the_extension_numpy_does_it():
    code = """
import numpy as np
from platoon_base.collectives import host, host_exchange
c = host.HostCollective.create(NAME, (3,), 0, None)
print(host_exchange.HAVE_FUSED, c.all_reduce(np.ones(2), "mean", timeout_s=1))
c.close()
""".replace("NAME", repr(f"{segment_prefix()}test{os.getpid()}-numpy"))
    environment = {**os.environ, "PLATOON_NO_KERNELS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False [1. 1.]\n"


class DeviceArray:
    """An array that lies elsewhere, with the face of a GpuArray."""

    context = "device 0"

    def __init__(self, data):
        self._data = np.array(data)
        self.shape, self.dtype, self.flags = self._data.shape, self._data.dtype, self._data.flags

    def __array__(self, dtype=None, copy=None):
        return self._data.copy()

    def write(self, source):
        self._data[...] = source


def empty(shape, dtype, context):
    assert context == "device 0"
    return DeviceArray(np.empty(shape, dtype))


@pytest.mark.parametrize("shape", [(), (0,), (5000,)])
def test_device_arrays_go_by_way_of_the_host(group, shape):
    size = len(group.members)
    arrays = [values(rank, (size, *shape), "float32") for rank in range(size)]

    def call(c):
        staged = StagedCollective(c)
        assert (staged.rank, staged.size) == (c.rank, size)
        staged.barrier(timeout_s=TIMEOUT_S)
        mine, own, sent = (DeviceArray(arrays[c.rank]) for _ in range(3))
        assert staged.all_reduce(own, out=own, timeout_s=TIMEOUT_S) is own
        assert staged.broadcast(sent, size - 1, timeout_s=TIMEOUT_S) is sent
        reduced = staged.all_reduce(mine, "max", timeout_s=TIMEOUT_S)
        gathered = staged.all_gather(mine, timeout_s=TIMEOUT_S)
        scattered = staged.reduce_scatter(mine, timeout_s=TIMEOUT_S)
        plain = staged.all_reduce(arrays[c.rank], timeout_s=TIMEOUT_S)
        assert isinstance(reduced, DeviceArray)
        return [np.asarray(a) for a in (own, sent, reduced, gathered, scattered, plain)]

    for rank, (own, sent, reduced, gathered, scattered, plain) in enumerate(group.run(call)):
        require_equal([own, plain], oracle(arrays, "sum", group.workers))
        require_equal([sent], arrays[-1])
        require_equal([reduced], oracle(arrays, "max", group.workers))
        require_equal([gathered], np.stack(arrays))
        require_equal([scattered], oracle([a[rank] for a in arrays], "sum", group.workers))


def test_device_arrays_that_cannot_work_are_refused():
    staged = StagedCollective(LocalCollective())
    array = DeviceArray(np.zeros((2, 3)))
    for call in (
        lambda: staged.all_reduce(array, out=np.zeros((2, 3)), timeout_s=1),
        lambda: staged.all_reduce(array, out=DeviceArray(np.zeros(3)), timeout_s=1),
        lambda: staged.reduce_scatter(array, timeout_s=1),
        lambda: staged.all_reduce(array, out=[[0.0] * 3] * 2, timeout_s=1),
        lambda: staged.all_reduce("array", timeout_s=1),
        lambda: staged.broadcast("array", timeout_s=1),
        lambda: staged.all_reduce(array, timeout_s=float("nan")),
    ):
        with pytest.raises(ConfigurationError, match="got"):
            call()


def test_a_refused_device_array_breaks_the_group(make):
    with make(2) as group:
        with pytest.raises(ConfigurationError, match="^got a device array and an ndarray"):
            StagedCollective(group.members[0]).all_reduce(DeviceArray(F32), out=F32, timeout_s=1)
        with pytest.raises(ConfigurationError, match="rank 0 refused its collective call 1.*: got a device array"):
            group.members[1].all_reduce(F32, timeout_s=TIMEOUT_S)


def test_a_refused_tensor_breaks_the_group(make):
    torch = pytest.importorskip("torch")
    from platoon_base.collectives.tensors import HostTensors

    with make(2) as group:
        with pytest.raises(ConfigurationError, match="bfloat16, which cannot be summed on the host"):
            HostTensors(group.members[0]).all_reduce(torch.zeros(3, dtype=torch.bfloat16), timeout_s=1)
        with pytest.raises(ConfigurationError, match="rank 0 refused its collective call 1.*bfloat16"):
            group.members[1].all_reduce(F32, timeout_s=5)


@pytest.mark.parametrize("strided", [False, True])
def test_tensors_go_by_way_of_the_host(group, strided):
    torch = pytest.importorskip("torch")
    from platoon_base.collectives.tensors import HostTensors

    size = len(group.members)
    arrays = [values(rank, (size, 40), "float32") for rank in range(size)]

    def call(c):
        staged = HostTensors(c)
        staged.barrier(timeout_s=TIMEOUT_S)
        own, sent, mine = (torch.tensor(arrays[c.rank]) for _ in range(3))
        if strided:
            own, sent, mine = (tensor.T.contiguous().T for tensor in (own, sent, mine))
        assert staged.all_reduce(own, out=own, timeout_s=TIMEOUT_S) is own
        assert staged.broadcast(sent, size - 1, timeout_s=TIMEOUT_S) is sent
        into = torch.empty(size, 40)
        assert staged.all_reduce(mine, out=into, timeout_s=TIMEOUT_S) is into
        found = staged.all_reduce(mine, "max", timeout_s=TIMEOUT_S), staged.all_gather(mine, timeout_s=TIMEOUT_S)
        np.testing.assert_array_equal(mine, arrays[c.rank])
        return [tensor.numpy() for tensor in (own, into, sent, *found)]

    for own, into, sent, most, gathered in group.run(call):
        require_equal([own, into], oracle(arrays, "sum", group.workers))
        require_equal([sent], arrays[-1])
        require_equal([most], oracle(arrays, "max", group.workers))
        require_equal([gathered], np.stack(arrays))
