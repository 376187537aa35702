from keras_preamble import *

on_torch = keras.backend.backend() == "torch"


class Spare(keras.Model):
    def __init__(self, used=False):
        super().__init__()
        self.spare, self.out, self.used = L.Dense(3), L.Dense(3), used

    def call(self, x):
        spare = self.spare(x)
        return self.out(x) + spare if self.used else self.out(x)


def build(optimizer, **options):
    keras.utils.set_random_seed(5)
    model = Spare(**options)
    model(np.zeros((1, 6), "float32"))
    model.compile(optimizer, loss="mse")
    return model


adam = lambda: keras.optimizers.Adam(0.05, weight_decay=0.1)
x, y = data(41)  # 21 and 20 rows: three batches, the last of 5 and 4
require_one_process(lambda wrap: build(wrap(adam())), x, y, moved=0.05)

x, y = data((24, 48)[rank])  # three batches and six
for used in (False, True) if on_torch else (False,):
    model = build(DistributedOptimizer(adam()), used=used and rank == 1)
    model.fit(x, y, epochs=2, batch_size=8, verbose=0, callbacks=distribute())
    same_everywhere(model)
    spare = flat(model.spare.get_weights())
    if keras.backend.backend() != "jax":  # which has zeros for such gradients, and lets the weights decay
        assert (abs(spare - flat(build("sgd").spare.get_weights())).max() > 0.01) == used
