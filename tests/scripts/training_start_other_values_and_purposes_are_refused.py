from job_preamble import EASGD, PlatoonError, Variable, np, rank, worker
from platoon_base.worker import start_training

LONG = f"f({'x=1, ' * 50}policy={rank}, {'y=2, ' * 50}z)"
for name, length, purpose in (("length", 3 + rank, ""), ("purpose", 3, f"policy={rank}"), ("long purpose", 3, LONG)):
    w = Variable("w", np.full(length, rank, "f4"))
    try:
        start_training(worker, name, "fit", values=[w], settings=purpose, rule=EASGD(), parameters=[np.ones(2)])
    except PlatoonError as exc:
        worker.report({f"{name} {rank}": str(exc)})
    assert (w.value == rank).all() and not worker.advanced.shares
