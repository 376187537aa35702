from job_preamble import np, sys, worker
import theano
from platoon_base.platoon_api.global_dynamics import EASGD, SGD, AverageSGD, Downpour, SumSGD
from platoon_base.theano_ops.base import JobOp
from synchronous_by_hand import FORMS, draw

SHAPES = [(3, 4), (), (5,)]


def shared(values):
    return [theano.shared(value, name=f"v{i}") for i, value in enumerate(values)]


rank, size, seen = worker.global_rank, worker.global_size, {}
for form in FORMS:
    # The center of the other workers is another one until the rule is made.
    x, c, u = (shared(draw(seed, SHAPES)) for seed in (rank, 99 + rank, rank + 20))
    if form == "easgd":
        rule = EASGD(worker)
        rule.make_rule(x, c, 0.2)
    elif form == "sum":
        rule = SumSGD(worker)
        rule.make_rule(u)
    elif form == "average":
        rule = AverageSGD()
        rule.make_rule(u)
    else:
        rule = Downpour(average=form == "downpour mean", worker=worker)
        rule.make_rule(x, u, c)
    nodes = [n for n in rule.function.maker.fgraph.toposort() if isinstance(n.op, JobOp)]
    assert len(nodes) == 1, nodes
    for step in range(4):
        for a, b, move in zip(x, u, draw(1000 * rank + step, SHAPES)):
            a.set_value(a.get_value() + move)
            b.set_value(b.get_value() + move)
        if form == "easgd":
            rule.alpha = 0.2 + 0.01 * step  # after compilation
        rule()
        for name, variables in (("x", x), ("c", c), ("u", u)):
            seen.update({f"{form} {step} {name} {i}": v.get_value() for i, v in enumerate(variables)})

one = theano.shared(np.float32(rank))
rule = SGD(average=False)
rule.make_rule(one)  # not in a list
rule()
assert one.get_value() == sum(range(size))
np.savez(f"{sys.argv[1]}/seen{rank}.npz", **seen)
