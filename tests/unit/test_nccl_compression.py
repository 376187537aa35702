"""Compressed all-reduces on devices: kernels run on the processor, transfers between threads, against the codecs."""

import ctypes
import queue
import shutil
import threading

import numpy as np
import pytest
from compressed_by_hand import CompressedByHand
from processor_cuda import compiler

from platoon_base.collectives.nccl_compressed import NcclCompression
from platoon_base.compression.codecs import ErrorFeedback, codec_of
from platoon_base.hosts import World

pytestmark = [
    pytest.mark.base,
    pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler: install g++"),
]

NAMES = ["float16", "bfloat16", "int8", "int4", "int2"]
TIMEOUT_S = 60


class Buffer:
    def __init__(self, size, dtype):
        self.array = np.zeros(size, dtype)
        self.address = self.array.ctypes.data


class Processor:
    """The runtime of a device that is the processor."""

    multiprocessors = 1

    def __init__(self, folder):
        self.driver = self
        self._compile = compiler(folder)

    def compile(self, name, source, types, arrays):
        library = ctypes.CDLL(self._compile(source(0), "processor")[:-1].decode())
        return Kernel(getattr(library, f"{name}_entry"), types)

    def zeros(self, size, dtype):
        return Buffer(size, dtype)

    def new_event(self):
        return None

    def follow(self, stream, event):
        assert stream == 7

    def record(self, event, stream):
        assert stream == 7


class Kernel:
    def __init__(self, function, types):
        self._function = function
        self._types = [np.ctypeslib.as_ctypes_type(np.dtype(name or "uint64")) for name in types]

    def launch(self, arguments, arrays, stream, blocks, threads):
        assert len(arguments) == len(self._types)
        given = [each.address if isinstance(each, Buffer) else each for each in arguments]
        values = [of_type(value) for of_type, value in zip(self._types, given)]
        self._function((ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values)))


class Network:
    """Transfers between ranks that are threads."""

    def __init__(self, size):
        self.ways = {(i, j): queue.Queue() for i in range(size) for j in range(size)}
        self.sent = np.zeros((size, size), int)

    def of(self, rank):
        return _End(self, rank)


class _End:
    def __init__(self, network, rank):
        self._network, self._rank = network, rank

    def exchange(self, sent, received, stream):
        assert len({rank for rank, _, _ in sent}) == len(sent)
        for rank, address, nbytes in sent:
            self._network.ways[self._rank, rank].put(ctypes.string_at(address, nbytes))
            self._network.sent[self._rank, rank] += nbytes
        for rank, address, nbytes in received:
            content = self._network.ways[rank, self._rank].get(timeout=TIMEOUT_S)
            assert len(content) == nbytes
            ctypes.memmove(address, content, nbytes)


class Job:
    """All ranks of a job."""

    def __init__(self, workers, codec, folder):
        self.size = sum(workers)
        self.network = Network(self.size)
        self.feedback = [ErrorFeedback() for _ in range(self.size)]
        self.ranks = []
        for host, count in enumerate(workers):
            world = World(workers=list(workers), host=host)
            for _ in range(count):
                self.ranks.append(NcclCompression(codec, Processor(folder), world, len(self.ranks)))

    def all_reduce(self, arrays, op):
        """Combine arrays, each in its own memory; returns the results."""
        arrays, failures = [array.copy() for array in arrays], []

        def run(rank):
            try:
                address = arrays[rank].ctypes.data
                call = self.ranks[rank].prepare(address, address, arrays[rank].size, op, 7, self.feedback[rank])
                self.ranks[rank].queue(self.network.of(rank), call)
            except BaseException as exc:
                failures.append(exc)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert all(way.empty() for way in self.network.ways.values())
        return arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [(1, 1), (2, 2), (3, 1, 2)], ids=str)
def test_all_ranks_get_the_bits_that_the_codecs_give(folder, name, workers):
    codec, rng = codec_of(name), np.random.default_rng(3)
    job, expected = Job(workers, codec, folder), CompressedByHand(workers, codec)
    for size, op in [(20011, "mean"), (20011, "mean"), (20011, "mean"), (33000, "sum"), (5, "sum")]:
        scale = np.exp(rng.standard_normal(size) * 4)
        arrays = [(rng.standard_normal(size) * scale).astype("f4") for _ in range(job.size)]
        if op == "sum":  # another call: residuals begin anew
            expected.kept = {}
        found, want = job.all_reduce(arrays, op), expected.all_reduce(arrays, op)
        for result in found:
            np.testing.assert_array_equal(result.view("u4"), want.view("u4"))


@pytest.mark.parametrize("name", NAMES)
def test_extreme_values_are_those_of_the_codecs(folder, name):
    codec = codec_of(name)
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, 40000, dtype=np.uint32)  # of all sizes, NaN and infinity among them
    edges = np.array([0, 0x80000000, 1, 0x477FEFFF, 0x477FF000, 0x7F7F7FFF, 0x7F7F8000, 0x387FFFFF, 0x33000000], "u4")
    bits[: len(edges)] = edges
    values, zeros = bits.view("f4"), np.zeros(40000, "f4")
    job, expected = Job((1, 1), codec, folder), CompressedByHand((1, 1), codec)
    with np.errstate(over="ignore", invalid="ignore"):
        for first, second in [(values, zeros), (zeros, values[::-1].copy())]:
            found, want = job.all_reduce([first, second], "sum"), expected.all_reduce([first, second], "sum")
            np.testing.assert_array_equal(found[0].view("u4"), found[1].view("u4"))
            np.testing.assert_array_equal(found[0], want)  # NaN may have other bits


def test_hosts_exchange_few_bytes(folder):
    job = Job((3, 2), codec_of("int8"), folder)
    job.all_reduce([np.ones(100_000, "f4")] * 5, "sum")
    between = job.network.sent[:3, 3:].sum(), job.network.sent[3:, :3].sum()
    assert max(between) < 1.1 * 100_000 * (1 + 4 / 256)  # half of the array as shares, half as results, a byte each


def test_small_calls_and_others_are_not_taken():
    assert NcclCompression.takes(20_000, "float32", "mean")
    assert not NcclCompression.takes(20_000, "float64", "mean")
    assert not NcclCompression.takes(20_000, "float32", "max")
    assert not NcclCompression.takes(16_384, "float32", "sum")
