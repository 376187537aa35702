from keras_preamble import *

Base = keras.utils.Sequence if KERAS_2 else keras.utils.PyDataset


class Batches(Base):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.order = x, y, np.arange(len(x))

    def __len__(self):
        return -(-len(self.x) // 8)

    def __getitem__(self, i):
        rows = self.order[8 * i : 8 * i + 8]
        return self.x[rows], self.y[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


x, y = data(77)
xv, yv = data(45, seed=1)
for averaged in (False, True):
    sgd = keras.optimizers.SGD(0.0)
    model = dense(optimizer=DistributedOptimizer(sgd) if averaged else sgd)
    watch = Watch()
    fit = model.fit_generator if KERAS_2 else model.fit
    fit(
        shard(Batches(x, y)),
        validation_data=shard(Batches(xv, yv)),
        epochs=3,
        verbose=0,
        callbacks=distribute([watch]),
        shuffle=False,
    )
    assert watch.batches == 3 * 4
    one, valid = dense().evaluate(x, y, verbose=0), dense().evaluate(xv, yv, verbose=0)
    for logs in watch.logs:
        got = [logs[name] for name in ("loss", "accuracy", "val_loss", "val_accuracy")]
        assert abs(np.array(got) - [*one, *valid]).max() < 1e-6, (got, one, valid)
