"""Arrays of JAX on devices: calls out of compiled programs, sums over workers, and memory of a center.

It imports JAX, 0.5 or later.
"""

from platoon_base.jax_arrays.arrays import (
    AwaitedArrays,
    BlockArrays,
    JaxArray,
    JaxArrays,
    change_now,
    device_of,
    on_cuda,
)
from platoon_base.jax_arrays.calls import Block, Gate, call_in_place, call_on_stream, gate_of
from platoon_base.jax_arrays.sums import sum_over_workers

__all__ = [
    "AwaitedArrays",
    "Block",
    "BlockArrays",
    "Gate",
    "JaxArray",
    "JaxArrays",
    "call_in_place",
    "call_on_stream",
    "change_now",
    "device_of",
    "gate_of",
    "on_cuda",
    "sum_over_workers",
]
