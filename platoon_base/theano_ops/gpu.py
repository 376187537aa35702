"""The same Ops on values that live on a device, and the graph optimizations that put them there.

Imported only where Theano has a device; import it yourself after `theano.gpuarray.use`.
"""

from __future__ import annotations

from typing import Any

import pygpu
import theano
from theano.gpuarray.basic_ops import as_gpuarray_variable
from theano.gpuarray.opt import op_lifter, register_opt, register_opt2

from platoon_base.collectives.flat import FlatBuffers
from platoon_base.theano_ops.reductions import OPS, AllReduce
from platoon_base.theano_ops.sync import Sync, Synchronizer
from platoon_base.worker.handle import Worker

__all__ = ["GpuAllReduce", "GpuSync"]


class GpuAllReduce(AllReduce):
    """`AllReduce` on GpuArrays: packed, combined and unpacked on the device, asynchronously.

    Parameters
    ----------
    worker : Worker
    reduction : {"sum", "prod", "max", "min", "mean"}
    context_name : str or None
        Theano's name of the device.
    inplace, turn, ordered
        See `JobOp`.
    compress : bool
        See `AllReduce`; with NCCL float32 alone is compressed.
    """

    __props__: tuple[str, ...] = ("worker", "reduction", "context_name", "inplace", "turn", "ordered", "compress")

    def __init__(
        self,
        worker: Worker,
        reduction: str,
        context_name: str | None = None,
        inplace: tuple[int, ...] = (),
        turn: int | None = None,
        ordered: bool = False,
        compress: bool = False,
    ) -> None:
        super().__init__(worker, inplace, turn, ordered, compress)
        self.reduction = reduction
        self.context_name = context_name
        self._buffers = FlatBuffers(theano.config.gpuarray.single_stream, self._compresses)

    def fusion_key(self) -> Any:
        """Return a key of the call; each device has calls of its own."""
        key = super().fusion_key()
        return key and (*key, self.context_name)

    def as_variable(self, value: Any) -> Any:
        """Bring a value to the device, if it is not there."""
        return as_gpuarray_variable(value, self.context_name)

    def empty_like(self, value: Any) -> Any:
        """Allocate memory for a result."""
        return pygpu.empty(value.shape, value.dtype, context=value.context)

    def __str__(self) -> str:
        return f"GpuAllReduce{{{self.reduction}, inplace={self.inplace}, turn={self.turn}}}"


class GpuSync(Sync):
    """`Sync` on GpuArrays: the worker is given what lies on the device.

    Parameters
    ----------
    synchronizer : Synchronizer
    context_name : str or None
        Theano's name of the device.
    inplace, ordered
        See `JobOp`.
    """

    __props__: tuple[str, ...] = ("synchronizer", "context_name", "inplace", "ordered")

    def __init__(
        self,
        synchronizer: Synchronizer,
        context_name: str | None = None,
        inplace: tuple[int, ...] = (),
        ordered: bool = False,
    ) -> None:
        super().__init__(synchronizer, inplace, ordered)
        self.context_name = context_name

    def as_variable(self, value: Any) -> Any:
        """Bring a value to the device, if it is not there."""
        return as_gpuarray_variable(value, self.context_name)

    __str__ = Sync.__str__


def lift_all_reduce(op: Any, context_name: Any, inputs: list[Any], outputs: list[Any]) -> GpuAllReduce:
    """Return the device's form of an `AllReduce`."""
    return GpuAllReduce(op.worker, op.reduction, context_name, op.inplace, op.turn, compress=op.compress)


def lift_sync(op: Any, context_name: Any, inputs: list[Any], outputs: list[Any]) -> GpuSync:
    """Return the device's form of a `Sync`."""
    return GpuSync(op.synchronizer, context_name, op.inplace)


# As Theano's own Ops: both while a whole graph is moved, and node by node.
for _maker, _ops in ((lift_all_reduce, list(OPS.values())), (lift_sync, [Sync])):
    register_opt("fast_compile", name=f"platoon_{_maker.__name__}")(op_lifter(_ops)(_maker))
    register_opt2(_ops, "fast_compile", name=f"platoon_{_maker.__name__}")(_maker)
