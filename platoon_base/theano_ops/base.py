"""The base class of all Ops that communicate with other workers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import theano
from theano.gof import Apply, Op

from platoon_base.errors import ConfigurationError

TOKEN = np.zeros((), "int8")
_turns = itertools.count(1)


def next_turn() -> int:
    """Return the next ticket; its order, not its value, is the same on all workers."""
    return next(_turns)


def skip_turns(turn: int) -> None:
    """Make `next_turn` return greater numbers than ``turn``, that of a loaded Op."""
    global _turns
    _turns = itertools.count(max(turn + 1, next(_turns)))


class JobBound:
    """An object of a running job: it cannot be pickled, and copies of graphs share it."""

    def __reduce__(self) -> Any:
        raise ConfigurationError(
            "a compiled function with collective operations belongs to a running job and cannot "
            "be pickled: save the parameters instead, for example with numpy.savez(path, "
            "*[p.get_value() for p in params])"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


class JobOp(JobBound, Op):  # type: ignore[misc]
    """An Op that communicates with other workers; k values in, k values of the same types out.

    It is pure at first: its outputs are new memory. Graph optimizations then let it overwrite
    inputs that no other node needs (`inplace.py`), and fix the order of a function's nodes
    (`order.py`).
    """

    __props__: tuple[str, ...]
    # Indices of the inputs whose memory becomes the output; the others are copied.
    inplace: tuple[int, ...] = ()
    # Whether the last input and output are a token, which orders this node behind another one.
    ordered = False
    # Of two independent nodes, the one with the lower turn comes first.
    turn: int | None = None

    def job_key(self) -> Any:
        """Return a key: nodes with equal keys must keep one order."""
        raise NotImplementedError

    def fusion_key(self) -> Any:
        """Return a key: nodes with equal keys may become one node. None keeps this node alone."""
        return None

    def changed(self, **props: Any) -> JobOp:
        new: JobOp = type(self)(**{**{name: getattr(self, name) for name in self.__props__}, **props})
        return new

    def as_variable(self, value: Any) -> Any:
        return theano.tensor.as_tensor_variable(value)

    def make_node(self, *values: Any) -> Apply:
        count = len(values) - self.ordered
        inputs = [self.as_variable(value) for value in values[:count]]
        inputs += [theano.tensor.as_tensor_variable(token) for token in values[count:]]
        return Apply(self, inputs, [variable.type() for variable in inputs])

    def values(self, inputs: list[Any]) -> list[Any]:
        return inputs[: len(inputs) - self.ordered]

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        values = self.values(inputs)
        own = [i in self.inplace and value.flags.c_contiguous for i, value in enumerate(values)]
        for storage, result in zip(output_storage, self.work(values, own)):
            storage[0] = result
        if self.ordered:
            output_storage[-1][0] = TOKEN

    def work(self, values: list[Any], own: list[bool]) -> list[Any]:
        """Return the results, in the memory of values that are ``own``, or in new memory."""
        raise NotImplementedError

    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        return shapes

    def do_constant_folding(self, node: Apply) -> bool:
        # Collective calls change even constant values.
        return False

    def _set_inplace(self, inplace: tuple[int, ...]) -> None:
        self.inplace = tuple(inplace)
        if inplace:
            self.destroy_map = {i: [i] for i in inplace}
