"""The graph optimization that lets Ops overwrite values that no other node needs."""

from __future__ import annotations

from typing import Any

import theano
from theano.gof import Apply, InconsistencyError, Optimizer, toolbox
from theano.gof.destroyhandler import DestroyHandler

from platoon_base.theano_ops.base import JobOp

__all__ = ["Inplace"]


class Inplace(Optimizer):  # type: ignore[misc]
    """Replace each pure `JobOp` by one that destroys as many of its inputs as Theano allows."""

    def add_requirements(self, fgraph: Any) -> None:
        fgraph.attach_feature(toolbox.ReplaceValidate())
        fgraph.attach_feature(DestroyHandler())

    def apply(self, fgraph: Any) -> None:
        """Try all candidate inputs together, and one by one if that is refused."""
        for node in [n for n in fgraph.toposort() if isinstance(n.op, JobOp) and not n.op.inplace]:
            needed = {*fgraph.inputs, *fgraph.outputs}
            values = node.op.values(node.inputs)
            free = tuple(i for i, x in enumerate(values) if x.owner is not None and x not in needed)
            if not free or _replace(fgraph, node, free) is not None:
                continue
            kept: tuple[int, ...] = ()
            for i in free:
                replaced = _replace(fgraph, node, (*kept, i))
                if replaced is not None:
                    node, kept = replaced, (*kept, i)


def _replace(fgraph: Any, node: Apply, inplace: tuple[int, ...]) -> Apply | None:
    """Replace a node by one that destroys these inputs; return None if that is not valid."""
    outputs = node.op.changed(inplace=inplace)(*node.inputs, return_list=True)
    try:
        fgraph.replace_all_validate(list(zip(node.outputs, outputs)), reason="platoon_inplace")
    except InconsistencyError:
        return None
    return outputs[0].owner


# 75 is the position of Theano's own in-place optimizations of BLAS and random Ops.
theano.compile.optdb.register("platoon_inplace", Inplace(), 75, "fast_run", "inplace")
