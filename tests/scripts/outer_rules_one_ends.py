"""Worker 2 of three ends in its second round; the others make four."""

from job_preamble import DiLoCo, ending, os, signal, sys, until, worker
from outer_rules_head import learn, save, x
from platoon_base.centers.host import HostCenter
from platoon_base.centers.host_kernels import RoundKernels
from platoon_base.channels.client import ControlClient


def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_the_midst_of_the_step():
    steps, step_of = [], RoundKernels.step

    def step(*args):
        steps.append(1)
        if len(steps) == 3:
            die()
        return step_of(*args)

    RoundKernels.step = step


def come_later():
    """Let worker 2 be the one to make the steps."""
    take_over = HostCenter.take_over

    def later(*args):
        until(lambda: ending(2))
        return take_over(*args)

    HostCenter.take_over = later


end = sys.argv[2]
with worker:
    worker.init_shared_params([x], DiLoCo(0.7, 0.8))
    worker.barrier("all here")
    for step in range(4):
        learn(step)
        if step == 1 and worker.global_rank == 2:
            if end == "it leaves before":
                worker.close()
                raise SystemExit
            if end == "it dies before it meets the others":
                ControlClient.wait_for_all = die
            else:
                die_in_the_midst_of_the_step()
        if step == 1 and worker.global_rank < 2 and end == "it dies in the midst of the step":
            come_later()
        worker.sync_params()
    save()
