"""The Ops on GpuArrays, imported with a device only, or after `theano.gpuarray.use`."""

from __future__ import annotations

from typing import Any

import pygpu
import theano
from theano.gpuarray.basic_ops import as_gpuarray_variable
from theano.gpuarray.opt import op_lifter, register_opt, register_opt2

from platoon_base.collectives.flat import FlatBuffers
from platoon_base.theano_ops.reductions import AllReduce
from platoon_base.theano_ops.sync import Sync, Synchronizer
from platoon_base.worker.handle import Worker


class GpuAllReduce(AllReduce):
    """`AllReduce` on GpuArrays, asynchronous on the device; NCCL compresses float32 only."""

    __props__: tuple[str, ...] = ("worker", "reduction", "context_name", "inplace", "turn", "ordered", "compress")

    def __init__(
        self,
        worker: Worker,
        reduction: str = "sum",
        context_name: str | None = None,
        inplace: tuple[int, ...] = (),
        turn: int | None = None,
        ordered: bool = False,
        compress: bool = False,
    ) -> None:
        super().__init__(worker, reduction, inplace, turn, ordered, compress)
        self.context_name = context_name
        self._buffers = FlatBuffers(theano.config.gpuarray.single_stream, self._compresses)

    def fusion_key(self) -> Any:
        key = super().fusion_key()
        return key and (*key, self.context_name)

    def as_variable(self, value: Any) -> Any:
        return as_gpuarray_variable(value, self.context_name)

    def empty_like(self, value: Any) -> Any:
        return pygpu.empty(value.shape, value.dtype, context=value.context)


class GpuSync(Sync):
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
        return as_gpuarray_variable(value, self.context_name)

    __str__ = Sync.__str__


def lift_all_reduce(op: Any, context_name: Any, inputs: list[Any], outputs: list[Any]) -> GpuAllReduce:
    return GpuAllReduce(op.worker, op.reduction, context_name, op.inplace, op.turn, compress=op.compress)


def lift_sync(op: Any, context_name: Any, inputs: list[Any], outputs: list[Any]) -> GpuSync:
    return GpuSync(op.synchronizer, context_name, op.inplace)


# Like Theano's own Ops, they are lifted both with a whole graph and node by node.
for _maker, _ops in ((lift_all_reduce, [AllReduce]), (lift_sync, [Sync])):
    register_opt("fast_compile", name=f"platoon_{_maker.__name__}")(op_lifter(_ops)(_maker))
    register_opt2(_ops, "fast_compile", name=f"platoon_{_maker.__name__}")(_maker)
