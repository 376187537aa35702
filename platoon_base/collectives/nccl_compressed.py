"""All-reduces of float32 on CUDA devices with compression between hosts and error feedback.

The equations are those of `platoon_base.collectives.hosts_compressed`. There are as many *lanes* as
the smallest host has ranks; a lane is a slice of the array. The rank of a lane adds the slices of
the ranks of its host, then combines the sum with the ranks of the same lane on the other hosts;
each of them combines a piece. All of it is queued on the device: kernels between NCCL's transfers
of bytes.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from platoon_base.collectives.hosts_exchange import SMALL_BYTES
from platoon_base.compression.codecs import Codec, ErrorFeedback
from platoon_base.compression.device_source import KERNELS, block_of, kernels_source
from platoon_base.devices.nccl import Communicator, Transfer
from platoon_base.devices.runtime import DeviceBuffer, DeviceRuntime
from platoon_base.hosts import World

_THREADS = 128
_FLOAT = 4
_LINE = 256  # Bytes of alignment.


class NcclCompression:
    """One rank of a group of all ranks of several hosts, with one CUDA device each."""

    def __init__(self, codec: Codec, runtime: DeviceRuntime, world: World, rank: int) -> None:
        self._codec, self._runtime, self._world, self._rank = codec, runtime, world, rank
        text = kernels_source(codec)
        self._kernels = {name: runtime.compile(name, lambda _: text, types, 0) for name, types in KERNELS.items()}
        self._blocks = 8 * runtime.multiprocessors
        self._memory: DeviceBuffer | None = None
        self._memory_bytes = 0
        self._plans = {0: _Plan(codec, world, rank, 0)}  # Plans by the number of elements.
        self._token = object()  # Residuals of another group must not be used.
        # Calls may use other streams, and a thread for the backward pass, but they share the
        # memory.
        self._latest_done = runtime.driver.new_event()
        self._one_at_a_time = threading.Lock()

    @staticmethod
    def takes(count: int, dtype: str, op: str) -> bool:
        """Return whether calls of this kind are compressed; small ones are faster without."""
        return dtype == "float32" and op in ("sum", "mean") and count * _FLOAT > SMALL_BYTES

    @property
    def peers(self) -> list[int]:
        return self._plans[0].peers

    def prepare(self, source: int, target: int, count: int, op: str, stream: int, feedback: ErrorFeedback) -> _Call:
        """Allocate the memory of an all-reduce; may raise `BackendUnavailableError`."""
        # This is done before the call is announced to other ranks.
        with self._one_at_a_time:
            if count not in self._plans:
                self._plans[count] = _Plan(self._codec, self._world, self._rank, count)
            plan = self._plans[count]
            kept = feedback.kept((self._token, op, count), lambda: self._runtime.zeros(plan.kept, "float32"))
            if self._memory is None or self._memory_bytes < plan.nbytes:
                self._memory, self._memory_bytes = self._runtime.zeros(plan.nbytes, "uint8"), plan.nbytes
            divisor = float(self._world.size) if op == "mean" else 1.0
            return _Call(plan, source, target, kept, self._memory, stream, divisor)

    def queue(self, comm: Communicator, call: _Call) -> None:
        with self._one_at_a_time:
            self._runtime.driver.follow(call.stream, self._latest_done)
            self._queue(comm, call)
            self._runtime.driver.record(self._latest_done, call.stream)

    def _queue(self, comm: Communicator, call: _Call) -> None:
        plan, lane, host, at = call.plan, call.plan.lane, self._world.host, call.plan.offsets
        comm.exchange(*plan.local_slices(call), call.stream)
        if lane is not None:
            own = call.source + lane * plan.slice * _FLOAT
            self._launch(
                "encode_shares", call, call.memory, call.kept, own, plan.elements(lane), at["slices"], at["share"],
                at["sent"], plan.stride, plan.width, plan.slice, plan.ranks, plan.index, plan.hosts, host,
            )  # fmt: skip
            comm.exchange(*plan.shares(call), call.stream)
            self._launch(
                "encode_result", call, call.memory, call.kept, at["share"], at["received"], plan.stride,
                plan.result(lane, host), plan.width, plan.hosts, host, call.divisor,
            )  # fmt: skip
            comm.exchange(*plan.results(call), call.stream)
        comm.exchange(*plan.codes_of_lanes(call), call.stream)
        self._launch("decode_all", call, call.memory, at["results"], plan.stride, plan.width, call.target, plan.count)

    def _launch(self, name: str, call: _Call, *arguments: Any) -> None:
        self._kernels[name].launch(arguments, [], call.stream, self._blocks, _THREADS)


class _Call(NamedTuple):
    """One call; source and target are addresses, and ``kept`` is the residual."""

    plan: _Plan
    source: int
    target: int
    kept: DeviceBuffer
    memory: DeviceBuffer
    stream: int
    divisor: float


class _Plan:
    """The layout of an array of ``count`` elements, and the ranks that get its parts.

    ``index`` is this rank's index on its host, and ``lane`` is its lane or None. ``width`` and
    ``slice`` are the elements of a piece and of a lane; ``stride`` is the bytes of a padded encoded
    piece. ``kept`` is the elements of the residual. ``offsets`` and ``nbytes`` describe the memory.
    """

    def __init__(self, codec: Codec, world: World, rank: int, count: int) -> None:
        self.count, self._world, self.hosts = count, world, world.hosts
        here = world.ranks_here
        self.ranks, self.index = len(here), rank - here[0]
        self.lanes = min(world.workers)
        self.lane = self.index if self.index < self.lanes else None
        block = block_of(codec)
        self.width = -(-count // (self.lanes * self.hosts * block)) * block
        self.slice = self.width * self.hosts
        self._encoded = codec.nbytes(self.width)
        self.stride = _lines(self._encoded)
        self.kept = self.slice if self.lane is not None else 1  # A buffer cannot be empty.
        sizes = {"results": self.lanes * self.hosts * self.stride}
        if self.lane is not None:
            sizes.update(
                slices=(self.ranks - 1) * self.slice * _FLOAT,
                share=self.width * _FLOAT,
                sent=self.hosts * self.stride,
                received=self.hosts * self.stride,
            )
        self.offsets: dict[str, int] = {}
        self.nbytes = 0
        for name, nbytes in sizes.items():
            self.offsets[name] = self.nbytes
            self.nbytes += _lines(nbytes)

    @property
    def peers(self) -> list[int]:
        with_lanes = [rank for _, rank in self._others_with_lanes()]
        if self.lane is None:
            return with_lanes
        return [*self._others_here(), *(rank for _, rank in self._counterparts())]

    def elements(self, lane: int) -> int:
        return max(0, min(self.count - lane * self.slice, self.slice))

    def result(self, lane: int, host: int) -> int:
        return self.offsets["results"] + (lane * self.hosts + host) * self.stride

    def local_slices(self, call: _Call) -> _Transfers:
        """List the slices to send to the lanes of this host, and those to receive."""
        own = 0 if self.lane is None else self.elements(self.lane) * _FLOAT
        sent = [
            Transfer(rank, call.source + lane * self.slice * _FLOAT, self.elements(lane) * _FLOAT)
            for lane, rank in self._others_with_lanes()
        ]
        rows = call.memory.address + self.offsets.get("slices", 0)
        received = [
            Transfer(rank, rows + row * self.slice * _FLOAT, own) for row, rank in enumerate(self._others_here())
        ]
        return _not_empty(sent), _not_empty(received)

    def shares(self, call: _Call) -> _Transfers:
        """List the encoded shares to send to the other hosts, and those to receive."""
        sent, received = (call.memory.address + self.offsets[name] for name in ("sent", "received"))
        return (
            [Transfer(rank, sent + host * self.stride, self._encoded) for host, rank in self._counterparts()],
            [Transfer(rank, received + host * self.stride, self._encoded) for host, rank in self._counterparts()],
        )

    def results(self, call: _Call) -> _Transfers:
        """List the encoded results to send to the other hosts, and those to receive."""
        lane, own, memory = self.index, self._world.host, call.memory.address
        return (
            [Transfer(rank, memory + self.result(lane, own), self._encoded) for _, rank in self._counterparts()],
            [Transfer(rank, memory + self.result(lane, host), self._encoded) for host, rank in self._counterparts()],
        )

    def codes_of_lanes(self, call: _Call) -> _Transfers:
        """List the encoded results of lanes to send to ranks of this host, and those to receive."""
        whole, memory = self.hosts * self.stride, call.memory.address
        own = [] if self.lane is None else [(rank, self.lane) for rank in self._others_here()]
        return (
            [Transfer(rank, memory + self.result(lane, 0), whole) for rank, lane in own],
            [Transfer(rank, memory + self.result(lane, 0), whole) for lane, rank in self._others_with_lanes()],
        )

    def _others_here(self) -> list[int]:
        here = self._world.ranks_here
        return [rank for index, rank in enumerate(here) if index != self.index]

    def _others_with_lanes(self) -> list[tuple[int, int]]:
        here = self._world.ranks_here
        return [(lane, here[lane]) for lane in range(self.lanes) if lane != self.index]

    def _counterparts(self) -> list[tuple[int, int]]:
        return [(h, self._world.ranks_on(h)[self.index]) for h in range(self.hosts) if h != self._world.host]


_Transfers = tuple[list[Transfer], list[Transfer]]


def _not_empty(transfers: list[Transfer]) -> list[Transfer]:
    return [each for each in transfers if each.nbytes]


def _lines(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE
