from job_preamble import LayoutMismatchError, np, rank, worker
import theano
from platoon_base.platoon_api.global_dynamics import EASGD, AverageSGD, Downpour, SumSGD

x, c, u = (theano.shared(np.zeros((2, 3) if rank else (3, 2)), name=name) for name in "xcu")
makers = {
    "easgd": lambda: EASGD().make_rule(x, c, 0.5),
    "downpour": lambda: Downpour().make_rule(x, u, c),
    "sgd": lambda: AverageSGD().make_rule(u),
    "mixed": lambda: (AverageSGD if rank else SumSGD)().make_rule(theano.shared(0.0, name="s")),
}
for name, make in makers.items():
    try:
        make()
    except LayoutMismatchError as exc:
        worker.report({f"{name} {rank}": str(exc)})
