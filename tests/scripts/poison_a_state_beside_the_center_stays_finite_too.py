from job_preamble import NonFiniteError, np, worker
from dataclasses import dataclass


@dataclass(frozen=True)
class Scaled:
    """s := s + (x - c)^2; c := c + (x - c) / (1 + sqrt s); x := c."""

    kernel, local_state, center_state = None, (), ("s",)

    def resolved(self, size):
        return self

    def kernel_args(self):
        return ()

    def sync(self, local, center, local_state, center_state):
        (s,) = center_state
        d = local - center
        s += d * d
        center += d / (1 + np.sqrt(s))
        local[...] = center


x = np.zeros(5)
worker.init_shared_params([x], Scaled())
if worker.global_rank == 0:
    x[2] = 1e200  # its square is infinite; the center stays 0
    try:
        worker.sync_params()
    except NonFiniteError:
        pass
worker.barrier("exploded")
if worker.global_rank == 1:
    x[:] = 1
    worker.sync_params()
    worker.report({"moved": int((x == 0.5).sum())})
