"""Theano Ops that let a worker synchronize inside the compiled function."""

from __future__ import annotations

from typing import Any

import theano
from theano.gof import Apply, InconsistencyError, Op, Optimizer, toolbox
from theano.gof.destroyhandler import DestroyHandler

from platoon_base.errors import ConfigurationError
from platoon_base.schedule import EveryN
from platoon_base.worker import Worker

__all__ = ["Sync", "Synchronizer"]


class Synchronizer:
    """Counts the updates of one compiled training loop and synchronizes when it is time.

    It is told apart by identity, so two Ops are equal only if they share one.
    """

    def __init__(self, worker: Worker, period: EveryN) -> None:
        self.worker = worker
        self.period = period

    def step(self, arrays: list[Any]) -> None:
        """Count one update, and synchronize ``arrays`` in place if it is the N-th."""
        self.worker.progress(steps=1)
        if self.period.due():
            self.worker.sync_arrays(arrays)

    def __reduce__(self) -> Any:
        raise ConfigurationError(
            "a compiled function that synchronizes cannot be pickled: it belongs to a running job; save the parameters "
            "instead, such as numpy.savez(path, *lasagne.layers.get_all_param_values(network))"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Synchronizer:
        return self  # a copied graph trains in the same job


class Sync(Op):  # type: ignore[misc]
    """Synchronize updated parameter values with the center on every N-th call; k inputs, k outputs.

    As written it is pure: its outputs are new memory. A graph optimization replaces it by the in-place form, in which
    a step without a synchronization copies nothing.

    Parameters
    ----------
    synchronizer : Synchronizer
    inplace : tuple of int
        Indices of the inputs whose memory becomes the output; the others are copied.
    """

    __props__ = ("synchronizer", "inplace")

    def __init__(self, synchronizer: Synchronizer, inplace: tuple[int, ...] = ()) -> None:
        self.synchronizer = synchronizer
        self.inplace = inplace
        if inplace:
            self.destroy_map = {i: [i] for i in inplace}

    def make_node(self, *values: Any) -> Apply:
        """Take the updated values, one for each shared parameter, in its order."""
        variables = [theano.tensor.as_tensor_variable(value) for value in values]
        return Apply(self, variables, [variable.type() for variable in variables])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        """Count the step, and synchronize if it is time."""
        arrays = [x if i in self.inplace and x.flags.c_contiguous else x.copy(order="C") for i, x in enumerate(inputs)]
        self.synchronizer.step(arrays)
        for storage, array in zip(output_storage, arrays):
            storage[0] = array

    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        """Return the shapes of the inputs."""
        return shapes

    def do_constant_folding(self, node: Apply) -> bool:
        """Never: even constant values change when they meet the center."""
        return False


class InplaceSync(Optimizer):  # type: ignore[misc]
    """Replace each pure `Sync` by one that destroys as many of its inputs as Theano allows.

    An input that is needed elsewhere, as itself or through a view, stays; the others are still not copied.
    """

    def add_requirements(self, fgraph: Any) -> None:
        """Let Theano check that no value is destroyed that is still needed."""
        fgraph.attach_feature(toolbox.ReplaceValidate())
        fgraph.attach_feature(DestroyHandler())

    def apply(self, fgraph: Any) -> None:
        """Try all inputs that could be destroyed at once, and one after the other if that is refused."""
        for node in [n for n in fgraph.toposort() if isinstance(n.op, Sync) and not n.op.inplace]:
            needed = {*fgraph.inputs, *fgraph.outputs}
            free = tuple(i for i, x in enumerate(node.inputs) if x.owner is not None and x not in needed)
            if not free or _replace(fgraph, node, free) is not None:
                continue
            kept: tuple[int, ...] = ()
            for i in free:
                replaced = _replace(fgraph, node, (*kept, i))
                if replaced is not None:
                    node, kept = replaced, (*kept, i)


def _replace(fgraph: Any, node: Apply, inplace: tuple[int, ...]) -> Apply | None:
    """Exchange the Op of a node for one that destroys these inputs; None, and nothing done, if that is not valid."""
    outputs = Sync(node.op.synchronizer, inplace)(*node.inputs, return_list=True)
    try:
        fgraph.replace_all_validate(list(zip(node.outputs, outputs)), reason="platoon_inplace_sync")
    except InconsistencyError:
        return None
    return outputs[0].owner


# 75 is where Theano's own in-place optimizations of BLAS and random Ops stand.
theano.compile.optdb.register("platoon_inplace_sync", InplaceSync(), 75, "fast_run", "inplace")
