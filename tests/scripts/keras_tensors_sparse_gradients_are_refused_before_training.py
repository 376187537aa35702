from keras_preamble import *
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
for name, layer, call in (
    ("embedding", embedding, lambda model: fit(model, distribute([watch]))),
    ("within", Within(Bag(), torch.nn.Linear(4, 4)), lambda model: fit(model, distribute([watch]))),
    ("nested", Model(Within(Bag())), broadcast_variables),
    ("unseen", Unseen(), lambda model: fit(model, distribute([watch]))),
):
    began = []
    watch = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: began.append(batch))
    model = made(layer)
    before = flat(model.get_weights())
    try:
        call(model)
    except PlatoonError as exc:
        worker.report({f"{name} {rank}": f"{type(exc).__name__} at batch {len(began)}: {exc}"})
    else:
        raise AssertionError(name)
    assert name == "unseen" or (flat(model.get_weights()) == before).all()

frozen = Wrapper(torch.nn.Embedding(10, 4, sparse=True))
frozen.trainable = False
for layer in (frozen, Within(Bag(False))):
    fit(made(layer), distribute())
fit(made(Within(Bag()), wrap=lambda optimizer: optimizer), distribute(rule=EASGD()))
