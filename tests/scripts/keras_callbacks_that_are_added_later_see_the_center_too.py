"""Such as those that KerasTuner adds to a copy of the list; what they change stays, everywhere."""

from keras_preamble import *

x, y = data(96)


class Added(keras.callbacks.Callback):
    seen, doubled = [], 0

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(flat(self.model.get_weights()))
        if epoch == 2:
            self.model.set_weights([2 * w for w in self.model.get_weights()])
            self.doubled = flat(self.model.get_weights())

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            assert (flat(self.model.get_weights()) == self.doubled).all()


model = dense(optimizer=keras.optimizers.SGD(0.1))
added = Added()
callbacks = [*distribute(rule=LocalSGD(), every_n_batches=2), added]
model.fit(*shard(x, y), epochs=5, batch_size=8, verbose=0, callbacks=callbacks)
assert len(added.seen) == 5
seen = worker.all_gather(np.array(added.seen))
assert (seen[0] == seen[1]).all()
assert abs(np.diff(seen[0], axis=0)).max(axis=1).all(), "they have learned"
assert (worker.all_gather(added.doubled)[0] == added.doubled).all()
