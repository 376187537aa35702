"""Averaged gradients of two workers, of which rank 1 sleeps before each batch, so rank 0 waits for it."""

from keras_preamble import DistributedOptimizer, connect, data, dense, distribute, keras
from sleeping import report, sleep

rank = connect().global_rank


class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if rank == 1:
            sleep("compute", 0.2)  # on busy cores a step of rank 0 takes long too


model = dense(optimizer=DistributedOptimizer("sgd"))
model.fit(*data(128), batch_size=8, epochs=1, verbose=0, callbacks=distribute([Slow()]))
report()
