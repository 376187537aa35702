import os
import subprocess
import sys

from center_momentum_head import CenterMomentum, take_turns, turns, worker, x
from watching import center_of


def read_center():
    with center_of(x, CenterMomentum()) as center:
        return center.snapshot()


with worker:
    worker.init_shared_params(x, CenterMomentum())
    if worker.late:
        values, (m, s) = read_center()
        worker.sync_params()  # it sits at the center: nothing but momentum could move it
        for now, old, momentum in zip(x, values, m):
            assert ((now != old) == (momentum != 0)).all()
    elif worker.global_size == 2:
        worker.barrier("all here")
        take_turns(turns(2))
    else:
        values, (m, s) = read_center()
        assert all((state != 0).all() for state in m)
        for array in x:
            array.reshape(-1)[1:] += 1
        worker.sync_params()
        after, (m_after, s_after) = read_center()
        for i, array in enumerate(x):
            assert (after[i] == array).all()
            assert (s_after[i] == s[i]).all()
            assert not m_after[i].reshape(-1)[1:].any()
            assert m_after[i].flat[0] == m[i].flat[0]
        environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
        subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
