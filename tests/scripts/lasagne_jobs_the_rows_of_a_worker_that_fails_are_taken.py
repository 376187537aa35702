from lasagne_preamble import *


def val_fn(x, y):
    if rank == 1:
        raise KeyError("a bug of the user's")
    return x.mean()


with connect() as worker:
    x = np.arange(30.0)
    worker.report({str(rank): evaluate(val_fn, x, x, 4, worker=worker)})
