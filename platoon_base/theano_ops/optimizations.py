"""Graph optimizations: one order of the collective calls on all workers, and Ops that overwrite values.

Theano's order of independent nodes depends on the whole graph, so one more output on one worker
would pair different calls. The order is made a part of the graph, which linkers and copies
preserve.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import theano
from theano.gof import Apply, InconsistencyError, Op, Optimizer, graph, toolbox
from theano.gof.destroyhandler import DestroyHandler
from theano.gof.opt import copy_stack_trace

from platoon_base.theano_ops.base import TOKEN, JobOp


class After(Op):  # type: ignore[misc]
    """Identity op: returns its first input (a view), and makes it depend on a token."""

    __props__ = ()
    view_map = {0: [0]}  # noqa: RUF012 - Theano's name for it

    def make_node(self, value: Any, token: Any) -> Apply:
        return Apply(self, [value, token], [value.type()])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        output_storage[0][0] = inputs[0]

    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        return shapes[:1]


class Done(Op):  # type: ignore[misc]
    """Returns a token that depends on a value."""

    __props__ = ()

    def make_node(self, value: Any) -> Apply:
        return Apply(self, [value], [theano.tensor.constant(TOKEN).type()])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        output_storage[0][0] = TOKEN

    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        return [()]


class _Caller(NamedTuple):
    level: int
    turn: int
    node: Apply


class OneOrder(Optimizer):  # type: ignore[misc]
    """Fuse the `JobOp` nodes of a worker that can be one call, and chain the others by tokens.

    The level of a node is the longest path of its worker's nodes that lead to it. Nodes of one
    level are independent, so fusing them makes no cycle. A loop (`theano.scan`) takes part as a
    whole.
    """

    def add_requirements(self, fgraph: Any) -> None:
        fgraph.attach_feature(toolbox.ReplaceValidate())

    def apply(self, fgraph: Any) -> None:
        jobs: dict[int, Any] = {}
        for node in fgraph.toposort():
            jobs.update((id(op.job_key()), op.job_key()) for op in _job_ops(node))
        for job in jobs.values():
            callers = _callers(fgraph.toposort(), job)
            if len(callers) > 1:
                _chain(fgraph, _calls(callers))


def _job_ops(node: Apply) -> list[JobOp]:
    """List the communicating Ops of a node: its own, or those of its inner graph."""
    if isinstance(node.op, JobOp):
        return [node.op]
    # The names of Scan, and of OpFromGraph.
    for names in (("inputs", "outputs"), ("local_inputs", "local_outputs")):
        inside = [getattr(node.op, name, None) for name in names]
        if all(isinstance(variables, (list, tuple)) for variables in inside):
            return [op for inner in graph.io_toposort(*inside) for op in _job_ops(inner)]
    return []


def _callers(order: list[Apply], job: Any) -> list[_Caller]:
    levels: dict[Apply, int] = {}
    found = []
    for node in order:
        ours = [op for op in _job_ops(node) if op.job_key() is job]
        before = (levels[x.owner] for x in node.inputs if x.owner is not None)
        levels[node] = bool(ours) + max(before, default=0)
        if ours:
            found.append(_Caller(levels[node], min(op.turn or 0 for op in ours), node))
    return found


def _calls(callers: list[_Caller]) -> list[list[Apply]]:
    """Group nodes that become one call, each group in the order of turns, and order the groups."""
    calls: list[list[Apply]] = []
    # Copied graphs have equal turns, which sorting leaves in Theano's order.
    ordered = sorted(callers, key=lambda caller: caller[:2])
    for _, of_level in groupby(ordered, key=lambda caller: caller.level):
        groups: dict[Any, list[Apply]] = {}
        for caller in of_level:
            key = caller.node.op.fusion_key() if isinstance(caller.node.op, JobOp) else None
            groups.setdefault(caller.node if key is None else key, []).append(caller.node)
        calls += groups.values()
    return calls


def _chain(fgraph: Any, calls: list[list[Apply]]) -> None:
    """Replace each group by one node; each node takes the token of the previous one."""
    token = theano.tensor.constant(TOKEN) if len(calls) > 1 else None
    for group in calls:
        first = group[0]
        if not isinstance(first.op, JobOp):
            fgraph.change_input(first, 0, After()(first.inputs[0], token), reason="platoon_one_order")
            token = Done()(first.outputs[0])
            continue
        old = [output for node in group for output in node.op.values(node.outputs)]
        new = [value for node in group for value in node.op.values(node.inputs)]
        if token is None:
            new = first.op.changed(ordered=False)(*new, return_list=True)
        else:
            *new, token = first.op.changed(ordered=True)(*new, token, return_list=True)
        copy_stack_trace(old, new)
        fgraph.replace_all_validate(list(zip(old, new)), reason="platoon_one_order")


# After the move to GPUs at 48.5, which changes transfers, and before in-place changes at 49.5.
theano.compile.optdb.register("platoon_one_order", OneOrder(), 49.2, "fast_run", "fast_compile")


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
