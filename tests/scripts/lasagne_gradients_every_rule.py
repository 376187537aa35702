from lasagne_preamble import *
from platoon_base.theano_ops.base import JobOp
from lasagne_rules import RULES, WITH_GRADIENTS

data = np.random.RandomState(7).randn(6, 5 * size, 4).astype("f4")


def make_params(seed):
    rng = np.random.RandomState(seed)
    return [theano.shared(rng.randn(4, 3).astype("f4"), name="W"), theano.shared(rng.randn(3).astype("f4"), name="b")]


x = T.fmatrix("x")


def loss_of(params):
    return T.sqr(T.tanh(T.dot(x, params[0]) + params[1]) - 0.3).mean()


rules = {**RULES, **WITH_GRADIENTS}
together, reference, updates_of_all = {}, {}, []
steps = []
for name, rule in rules.items():
    # The other workers begin elsewhere, until the graph is built.
    params = together[name] = make_params(3 + rank)
    loss = loss_of(params)
    updates = rule(all_reduce_grads(loss, params), params)
    step = theano.function([x], loss, updates=updates)
    nodes = [n for n in step.maker.fgraph.toposort() if isinstance(n.op, JobOp)]
    assert len(nodes) == 1 and nodes[0].op.reduction == "mean", nodes
    steps.append(step)
    params = reference[name] = make_params(3)
    loss = loss_of(params)
    updates_of_all += rule(theano.grad(loss, params), params).items()
alone = theano.function([x], updates=updates_of_all)

mine = slice(5 * rank, 5 * rank + 5)
for batch in data:
    for step in steps:
        step(batch[mine])
    alone(batch)
seen = {}
for name in rules:
    start = make_params(3)
    for ours, theirs, first in zip(together[name], reference[name], start):
        moved = abs(theirs.get_value() - first.get_value()).max()
        assert moved > 1e-3, (name, moved)
        np.testing.assert_allclose(ours.get_value(), theirs.get_value(), rtol=1e-4, atol=1e-5, err_msg=name)
        seen[f"{name} {ours.name}"] = ours.get_value()
np.savez(f"{sys.argv[1]}/{rank}.npz", **seen)
