from job_preamble import np, sys, worker
from platoon_base.rules.synchronous import average_sgd, downpour, easgd, sum_sgd
from platoon_base.worker import FlatAllReduce
from synchronous_by_hand import FORMS, draw

SHAPES = [(3, 4), (), (70_000,), (0, 2)]


def note(name, arrays):
    seen.update({f"{name} {i}": np.array(a) for i, a in enumerate(arrays)})


rank, seen = worker.global_rank, {}
reduce = FlatAllReduce(worker)
for form in FORMS:
    x, c, u = (draw(seed, SHAPES) for seed in (rank, 99, rank + 20))
    for step in range(5):
        moves = draw(1000 * rank + step, SHAPES)
        for a, b, move in zip(x, u, moves):
            a += move
            b += move
        if form == "easgd":
            easgd(x, c, 0.2 + 0.01 * step, reduce)
        elif form == "sum":
            sum_sgd(u, reduce)
        elif form == "average":
            average_sgd(u, reduce)
        else:
            downpour(x, u, c, reduce, average=form == "downpour mean")
        for name, arrays in (("x", x), ("c", c), ("u", u)):
            note(f"{form} {step} {name}", arrays)
np.savez(f"{sys.argv[1]}/seen{rank}.npz", **seen)
