"""Its sum over a mini-batch is not known as one: a warning says what becomes of it; one of weights has none."""

from keras_preamble import *

x, y = data(32)


class Added(L.Layer):
    def call(self, z):
        self.add_loss(0.01 * keras.ops.sum(z * z))
        return z


def said(layer, wrap, **options):
    start = L.Input((6,))
    out = L.Dense(3, activation="softmax", kernel_regularizer="l2")(layer(L.Dense(4)(start)))
    model = keras.models.Model(start, out)
    model.compile(wrap(keras.optimizers.SGD(0.1)), loss="categorical_crossentropy")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(**options))
    return [str(each.message) for each in caught if "layers add losses" in str(each.message)]


by_activity = L.ActivityRegularization(l2=0.01)
assert not said(by_activity, lambda plain: plain, rule=EASGD())
if not KERAS_2:
    assert not said(by_activity, DistributedOptimizer), "Keras divides it by the number of rows"
(warning,) = said(by_activity if KERAS_2 else Added(), DistributedOptimizer)
assert "counts N times less on N workers" in warning, warning
