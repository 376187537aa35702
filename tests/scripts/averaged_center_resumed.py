"""Workers by turns, in the first job; those of the next look at where they begin."""

import sys

import numpy as np

from platoon_base import AveragedEASGD, connect

folder, job = sys.argv[1:]
x = [np.zeros(4, "float32")]
worker = connect()


def average():
    with worker.center_params():
        return x[0].copy()


with worker:
    worker.init_shared_params(x, AveragedEASGD(), moments=[])
    worker.barrier("all here")
    if job == "first":
        for turn in range(6):
            if turn % 2 == worker.global_rank:
                x[0] += [1, -1, turn, 0.5]
                worker.progress(steps=1)
                worker.sync_params()
            worker.barrier(f"turn {turn}")
        np.savez(f"{folder}/{worker.global_rank}.npz", center=worker.center_arrays[0], average=average())
        worker.barrier("saved")
    else:
        before = np.load(f"{folder}/0.npz")
        assert abs(before["average"] - before["center"]).max() > 0.1
        if worker.global_size == 2:
            np.testing.assert_array_equal(x[0], before["center"])
            np.testing.assert_array_equal(average(), before["average"])
        else:
            np.testing.assert_array_equal(x[0], before["average"])
        worker.barrier("looked")
