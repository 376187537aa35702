from keras_preamble import *
from keras_tensors_order import *


def die(weight):
    if sum(isinstance(each, int) for each in order) > 20:  # the sixth step
        os.kill(os.getpid(), signal.SIGKILL)


model = dense(optimizer=DistributedOptimizer("sgd"))
if rank == 1:
    model.trainable_weights[0].value.register_post_accumulate_grad_hook(die)
begun = time.monotonic()
try:
    train(model, rows=40)
except PlatoonError as exc:
    worker.report({"told": f"{type(exc).__name__}: {exc}", "took": time.monotonic() - begun})
