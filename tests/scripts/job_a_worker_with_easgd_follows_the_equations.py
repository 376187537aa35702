from job_preamble import EASGD, connect, np, sys

rng = np.random.default_rng(5)
x = [rng.standard_normal((37, 11)).astype("float32"), rng.standard_normal(5)]
with connect() as worker:
    worker.init_shared_params(x, EASGD(0.3))
    history = []
    for step in range(12 * (worker.global_rank == 0)):
        for array in x:
            array -= (0.1 * rng.standard_normal(array.shape)).astype(array.dtype)
        if step % 3 == 2:
            worker.sync_params()
        with worker.center_params():
            center = [array.copy() for array in x]
        history.append([array.copy() for array in x] + center)
named = {f"{i}_{j}": a for i, row in enumerate(history) for j, a in enumerate(row)}
if named:
    np.savez(sys.argv[1] + "/history.npz", **named)
