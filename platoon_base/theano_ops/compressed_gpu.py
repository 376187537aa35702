"""`Float16Sum` on GpuArrays; imported only if Theano uses a device."""

from __future__ import annotations

from typing import Any

from theano.gpuarray.basic_ops import as_gpuarray_variable
from theano.gpuarray.opt import op_lifter, register_opt, register_opt2

from platoon_base.theano_ops.compressed import Float16Sum
from platoon_base.worker.handle import Worker

__all__ = ["GpuFloat16Sum"]


class GpuFloat16Sum(Float16Sum):
    """`Float16Sum` on GpuArrays: converted and summed on the device."""

    __props__: tuple[str, ...] = ("worker", "context_name", "inplace", "turn", "ordered")

    def __init__(
        self,
        worker: Worker,
        context_name: str | None = None,
        inplace: tuple[int, ...] = (),
        turn: int | None = None,
        ordered: bool = False,
    ) -> None:
        super().__init__(worker, inplace, turn, ordered)
        self.context_name = context_name

    def as_variable(self, value: Any) -> Any:
        return as_gpuarray_variable(value, self.context_name)

    __str__ = Float16Sum.__str__


def lift_float16_sum(op: Any, context_name: Any, inputs: list[Any], outputs: list[Any]) -> GpuFloat16Sum:
    return GpuFloat16Sum(op.worker, context_name, op.inplace, op.turn)


register_opt("fast_compile", name="platoon_lift_float16_sum")(op_lifter([Float16Sum])(lift_float16_sum))
register_opt2([Float16Sum], "fast_compile", name="platoon_lift_float16_sum")(lift_float16_sum)
