from keras_preamble import *
from platoon_base.errors import ConfigurationError
import torch

words, y = np.arange(8) % 10, np.ones((8, 4), "f4")
Wrapper = L.TorchModuleWrapper


class Within(L.Layer):
    def __init__(self, *modules):
        super().__init__()
        self.parts = [Wrapper(torch.nn.Sequential(*modules), name="parts")]

    def call(self, x):
        return self.parts[0](x)


class Unseen(L.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(10, 4), initializer="ones", name="table")

    def call(self, x):
        return torch.nn.functional.embedding(x, self.table.value, sparse=True)


class Model(keras.Model):
    def __init__(self, first):
        super().__init__()
        self.first, self.last = first, L.Dense(4)

    def call(self, x):
        return self.last(self.first(x))


def made(layer, wrap=DistributedOptimizer):
    model = Model(layer)
    model(torch.from_numpy(words))
    model.compile(wrap(keras.optimizers.SGD(0.1)), "mse")
    return model


def fit(model, callbacks):
    model.fit(words, y, batch_size=4, verbose=0, callbacks=callbacks)


class Bag(torch.nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(10, 4, mode="mean", sparse=sparse)

    def forward(self, x):
        return self.bag(x[:, None])


embedding = Wrapper(torch.nn.Embedding(10, 4, sparse=True), name="words")
in_a_fit = lambda model: fit(model, distribute([watch]))
for layer, call, named in (
    (embedding, in_a_fit, "Embedding in the layer words"),
    (Within(Bag(), torch.nn.Linear(4, 4)), in_a_fit, "EmbeddingBag 0.bag in the layer parts"),
    (Model(Within(Bag())), broadcast_variables, "EmbeddingBag 0.bag in the layer parts"),
    (Unseen(), in_a_fit, "a sparse gradient"),
):
    began = []
    watch = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: began.append(batch))
    model = made(layer)
    before = flat(model.get_weights())
    with raises(ConfigurationError, named, "sparse=False"):
        call(model)
    unseen = isinstance(layer, Unseen)
    assert len(began) == int(unseen)
    assert unseen or (flat(model.get_weights()) == before).all()

frozen = Wrapper(torch.nn.Embedding(10, 4, sparse=True))
frozen.trainable = False
for layer in (frozen, Within(Bag(False))):
    fit(made(layer), distribute())
fit(made(Within(Bag()), wrap=lambda optimizer: optimizer), distribute(rule=EASGD()))
