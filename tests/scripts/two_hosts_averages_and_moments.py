import numpy as np

from hosts_preamble import rank, say, time, worker

from platoon_base.rules import AveragedEASGD

HOST = 0 if rank < 2 else 1
OWN = (1.0, 1e-8)[HOST]  # of the moments of this host; those of the other one would carry it away
x, moment = np.full(1000, 5.0, "float32"), np.full(1000, OWN, "float32")
worker.init_shared_params([x], AveragedEASGD(), moments=[moment])
worker.copy_to_local()
moment[:] = OWN
worker.barrier("shared")
deadline, near = time.monotonic() + 40, 0
while near < 10:
    assert time.monotonic() < deadline, x[0]
    x -= np.float32(0.01) * (x - np.float32(3 * HOST))
    moment[:] = OWN
    worker.progress(steps=1)
    worker.sync_params()
    assert moment.min() >= 0
    near += all(0.2 < value < 2.8 for value in worker.gather(float(x[0])))  # alone a host goes to 0 or 3
worker.barrier("trained")
worker.average_hosts()
worker.copy_to_local()
say(x.tobytes().hex()[:2000], float(x.sum()), bool(abs(moment - OWN).max() < 0.5 * OWN))
worker.barrier("end")
