from job_preamble import np, sys, worker
from platoon_base.rules.synchronous import average_sgd, downpour, easgd, sum_sgd
from platoon_base.worker import FlatAllReduce

POISONED, seen = 3, {}
reduce, rank = FlatAllReduce(worker), worker.global_rank
for form in ("easgd", "downpour", "sum", "average"):
    for bad in (np.nan, np.inf, -np.inf):
        rng = np.random.default_rng(rank)
        x, c = (
            [np.zeros((3, 4), dtype), np.zeros((), dtype), np.zeros(70_000, dtype)] for dtype in ("float32", "float32")
        )
        for step in range(10):
            u = [np.asarray(rng.standard_normal(a.shape), a.dtype) for a in x]
            if step == POISONED and rank == 1:
                u[0][1, 2] = u[2][69_999] = bad
            for a, move in zip(x, u):
                a += move
            if form == "easgd":
                easgd(x, c, 0.3, reduce)
                common = c
            elif form == "downpour":
                downpour(x, u, c, reduce)
                common = c
            else:
                (sum_sgd if form == "sum" else average_sgd)(u, reduce)
                common = u
            if not all(np.isfinite(a).all() for a in common):
                break
        assert step == POISONED
        assert [np.flatnonzero(~np.isfinite(a)).tolist() for a in common] == [[6], [], [69_999]]
        own = [np.flatnonzero(~np.isfinite(a)).tolist() for a in x]
        if form == "easgd" and rank != 1:
            assert own == [[], [], []], "in the same step the others' own values are whole yet"
        seen.update({f"{form} {bad} {i}": a for i, a in enumerate(common)})
np.savez(f"{sys.argv[1]}/seen{rank}.npz", **seen)
