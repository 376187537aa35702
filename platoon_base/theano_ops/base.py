"""The base class of all Ops that talk to other workers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import theano
from theano.gof import Apply, Op

from platoon_base.errors import ConfigurationError

__all__ = ["TOKEN", "JobBound", "JobOp", "next_turn", "skip_turns"]

TOKEN = np.zeros((), "int8")
_turns = itertools.count(1)


def next_turn() -> int:
    """Return a number greater than all before; on all workers its order is the same, not its value."""
    return next(_turns)


def skip_turns(turn: int) -> None:
    """See to it that `next_turn` returns numbers greater than ``turn``, which an Op that was loaded has."""
    global _turns
    _turns = itertools.count(max(turn + 1, next(_turns)))


class JobBound:
    """Belongs to a running job: it is not pickled, and copies of graphs share it."""

    def __reduce__(self) -> Any:
        raise ConfigurationError(
            "a compiled function that meets other workers cannot be pickled: it belongs to a running job; save the "
            "parameters instead, such as numpy.savez(path, *[p.get_value() for p in params])"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


class JobOp(JobBound, Op):  # type: ignore[misc]
    """An Op whose nodes talk to the other workers; k values in, k values of the same types out.

    As written it is pure: its outputs are new memory. Graph optimizations then make it destroy inputs that are nobody
    else's (`inplace.py`), and bring the nodes of a function into one order (`order.py`).

    Attributes
    ----------
    inplace : tuple of int
        Indices of the inputs whose memory becomes the output; the others are copied.
    ordered : bool
        Whether the last input and the last output are a token, which carries the order from one node to the next.
    turn : int
        Of two nodes that do not depend on one another, the one with the lower turn comes first.
    """

    __props__: tuple[str, ...]
    inplace: tuple[int, ...] = ()
    ordered = False
    turn: int | None = None

    def job_key(self) -> Any:
        """Return a key: nodes with equal keys must keep one order."""
        raise NotImplementedError

    def fusion_key(self) -> Any:
        """Return a key: nodes with equal keys may become one node. None keeps this node alone."""
        return None

    def changed(self, **props: Any) -> JobOp:
        """Return this Op with other properties."""
        new: JobOp = type(self)(**{**{name: getattr(self, name) for name in self.__props__}, **props})
        return new

    def as_variable(self, value: Any) -> Any:
        """Make one of the values a variable."""
        return theano.tensor.as_tensor_variable(value)

    def make_node(self, *values: Any) -> Apply:
        """Take the values, and the token if there is one."""
        count = len(values) - self.ordered
        inputs = [self.as_variable(value) for value in values[:count]]
        inputs += [theano.tensor.as_tensor_variable(token) for token in values[count:]]
        return Apply(self, inputs, [variable.type() for variable in inputs])

    def values(self, inputs: list[Any]) -> list[Any]:
        """Leave out the token."""
        return inputs[: len(inputs) - self.ordered]

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        """Call `work`, and pass the token on."""
        values = self.values(inputs)
        own = [i in self.inplace and value.flags.c_contiguous for i, value in enumerate(values)]
        for storage, result in zip(output_storage, self.work(values, own)):
            storage[0] = result
        if self.ordered:
            output_storage[-1][0] = TOKEN

    def work(self, values: list[Any], own: list[bool]) -> list[Any]:
        """Return the results, each in the memory of its value where that is ``own``, and in new memory elsewhere."""
        raise NotImplementedError

    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        """Return the shapes of the inputs."""
        return shapes

    def do_constant_folding(self, node: Apply) -> bool:
        """Never: even constant values change when they meet those of the other workers."""
        return False

    def _set_inplace(self, inplace: tuple[int, ...]) -> None:
        self.inplace = tuple(inplace)
        if inplace:
            self.destroy_map = {i: [i] for i in inplace}
