from keras_preamble import *


class Branch(keras.Model):
    def __init__(self):
        super().__init__()
        self.all, self.some = L.Dense(3), L.Dense(3)
        self.all.build((None, 6)), self.some.build((None, 6))
        self.built = True

    def call(self, x):
        return self.all(x) + self.some(x) if rank else self.all(x)


x, y = data(16 * size)
keras.utils.set_random_seed(7)
model = Branch()
before = flat(model.get_weights())
model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
try:
    model.fit(*shard(x, x[:, :3], reshuffle=False), batch_size=16, shuffle=False, verbose=0, callbacks=distribute())
except PlatoonError as exc:
    assert "got gradients of weights 2 (shape (6, 3)), 3 (shape (3,)) on some workers only" in str(exc), exc
    refused = True
else:
    refused = False
assert refused == (keras.backend.backend() == "tensorflow")
if not refused:
    after = flat(model.get_weights())
    assert (everyones(after) == after).all()
    kernels = [before[:18].reshape(6, 3), before[21:39].reshape(6, 3)]
    own = x[rank::size]  # the gradient of the mean square of the errors, by hand
    error = own @ (kernels[0] + kernels[1] * (rank > 0)) - own[:, :3]
    mine = (own.T @ error * 2 / error.size).ravel()
    all_used = everyones(mine).mean(axis=0)
    some_used = everyones(mine * (rank > 0)).mean(axis=0)
    assert abs(before[:18] - 0.1 * all_used - after[:18]).max() < 1e-6
    assert abs(before[21:39] - 0.1 * some_used - after[21:39]).max() < 1e-6
