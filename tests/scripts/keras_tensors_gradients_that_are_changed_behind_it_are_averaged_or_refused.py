"""In all steps: averages begin behind it. In later ones only: refused, as the others have the old ones."""

from keras_preamble import *
from keras_tensors_order import *
from platoon_base.errors import ConfigurationError


def halve(weight):
    weight.grad.mul_(0.5)


def register(model):
    return model.trainable_weights[2].value.register_post_accumulate_grad_hook(halve)


class From(keras.callbacks.Callback):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            register(self.model)


model, plain = dense(optimizer=DistributedOptimizer("sgd")), dense()
train(model, rows=20, callbacks=[From(0)])
first, second, third, rest = steps()  # after which no gradient is watched any more
assert [step.count("call") for step in (first, second, third)] == [0, 1, 1] and set(rest) == {"call"}, rest
register(plain)
(x, y), (x1, y1) = data(20, seed=0), data(20, seed=1)
rows = np.arange(20).reshape(5, 4)
for batch in rows:
    plain.train_on_batch(np.concatenate([x[batch], x1[batch]]), np.concatenate([y[batch], y1[batch]]))
np.testing.assert_allclose(flat(model.get_weights()), flat(plain.get_weights()), atol=1e-6)

model = dense(optimizer=DistributedOptimizer("sgd"))
with raises(ConfigurationError, "got gradients that changed after"):
    train(model, rows=20, callbacks=[From(4)])
