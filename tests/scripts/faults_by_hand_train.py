# ruff: noqa: F401 - for the lines that tests add
import numpy

from by_hand_preamble import EASGD, worker

params = [numpy.zeros(1000) + worker.global_rank]
worker.init_shared_params(params, EASGD(0.5))
print("shares", flush=True)


def train(times):
    for i in range(times):
        params[0] += 1
        worker.sync_params()
        worker.send_req("next")
