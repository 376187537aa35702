from job_preamble import LayoutMismatchError, np, rank, worker
from platoon_base.worker import start_together

for name, params, purpose in (
    ("shape", [np.full(4, rank), np.full((2, 3 + (rank == 2)), rank)], ""),
    ("number", [np.full(4, rank)] * (1 + (rank == 0)), ""),
    ("purpose", [np.full(4, rank)], f"mean={rank == 1}"),
):
    params = [p.astype("f4") for p in params]
    try:
        start_together(params, worker, purpose)
    except LayoutMismatchError as exc:
        worker.report({f"{name} {rank}": str(exc)})
    assert all((p == rank).all() for p in params)
start_together([np.ones(1)], worker)
