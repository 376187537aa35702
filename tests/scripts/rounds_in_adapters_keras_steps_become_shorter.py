from keras_preamble import data, dense, distribute, keras, np, shard

x, y = data(96)


class Harder(keras.callbacks.Callback):
    """Makes the loss ten times as large from the second epoch on: its weights are multiplied."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            w[...] *= 10


x, y, w = shard(x, y, np.ones(96, "float32"))
w = np.array(w)
model = dense(optimizer=keras.optimizers.SGD(0.01))


class Rows(keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else keras.utils.Sequence):
    def __len__(self):
        return len(x) // 8

    def __getitem__(self, i):
        part = slice(8 * i, 8 * i + 8)
        return x[part], y[part], w[part]


model.fit(Rows(), epochs=3, verbose=0, shuffle=False, callbacks=distribute([Harder()]))
