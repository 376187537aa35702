from keras_preamble import *

x, y = data(60)


def die(callback, batch):
    if rank == 1 and callback.batches == 3:
        os.kill(os.getpid(), signal.SIGKILL)


model = dense(optimizer=DistributedOptimizer("sgd"))
try:
    model.fit(*shard(x, y), epochs=4, batch_size=5, verbose=0, callbacks=distribute([Watch(batch_end=die)]))
except PlatoonError as exc:
    worker.report({f"kind {rank}": type(exc).__name__, f"error {rank}": str(exc)})
