from keras_preamble import *
from platoon_base.errors import WorkerLostError


def kill(callback, batch):
    if rank == 1 and batch == 3:
        os.kill(os.getpid(), signal.SIGKILL)


x, y = data(64)
try:
    dense(optimizer=DistributedOptimizer("sgd")).fit(
        x, y, batch_size=4, verbose=0, callbacks=distribute([Watch(batch_end=kill)])
    )
except WorkerLostError as exc:
    assert "rank 1" in str(exc), exc
    worker.report({"told": 1})
    raise
