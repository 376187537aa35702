"""Compares all state of a model between the workers after fits; before, everything is different on each of them."""

from keras_preamble import *

MODE, BACKEND = sys.argv[-1], keras.backend.backend()
ROWS, EPOCHS = 90, 2


def own_weight(layer, name, shape, dtype, value=0, **options):
    initializer = keras.initializers.Constant(value)
    return layer.add_weight(name=name, shape=shape, dtype=dtype, initializer=initializer, trainable=False, **options)


class Counting(L.Layer):
    """State of each kind, which calls change."""

    def build(self, shape):
        self.calls = own_weight(self, "calls", (), "int32")
        self.mean = own_weight(self, "mean", (), "float32")
        if not KERAS_2:
            self.flag = own_weight(self, "flag", (), "bool")
            self.rows = own_weight(self, "rows", (), "float32", aggregation="sum")
            self.tokens = own_weight(self, "tokens", (), "int32", aggregation="sum")
            self.half = own_weight(self, "half", (), "int32", aggregation="mean")
            self.bank = own_weight(self, "bank", (6,), "float32", aggregation="only_first_replica")
            self.brain = own_weight(self, "brain", (6,), "bfloat16")
        super().build(shape)

    def call(self, x, training=None):
        if KERAS_2:
            K = keras.backend
            self.add_update([(self.calls, self.calls + 1), (self.mean, K.mean(x))], inputs=x)
            return x
        if training:
            ops = keras.ops
            n = ops.shape(x)[0]
            self.calls.assign_add(1)
            self.mean.assign(ops.mean(x))
            self.flag.assign(ops.logical_not(self.flag))
            self.rows.assign_add(ops.cast(n, "float32"))
            self.tokens.assign_add(ops.cast(2 * n, "int32"))
            self.half.assign(ops.cast(n, "int32"))
            self.bank.assign(ops.max(x, axis=0))
            self.brain.assign(ops.cast(ops.max(x, axis=0), "bfloat16"))
        return x


class Resets(keras.callbacks.Callback):
    """Changes metrics on one worker alone."""

    def on_epoch_end(self, epoch, logs=None):
        if rank == 0:
            self.model.reset_metrics()


def zoo():
    if KERAS_2:
        layers = [L.Dense(6, input_shape=(6,), trainable=False), Counting(), L.BatchNormalization(), L.Dropout(0.3)]
        model = keras.Sequential([*layers, L.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01)
    else:
        base = keras.Sequential([keras.Input((6,)), L.Dense(6)])
        base.quantize("int8")
        base.layers[0].enable_lora(2)
        normal = L.Normalization()
        normal.adapt(np.random.default_rng(rank).normal(size=(50, 6)))
        layers = [normal, base, Counting(), L.BatchNormalization(), L.Dropout(0.3)]
        layers.append(L.SpectralNormalization(L.Dense(5)))
        if BACKEND == "torch":
            import torch

            module = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.BatchNorm1d(5))
            module.register_buffer("mask", torch.tensor([rank == 0, True]))
            module.register_buffer("phase", torch.full((2,), 1 + 1j * rank))
            module.register_buffer("table", torch.arange(3) + 2**60 + rank)
            layers.append(L.TorchModuleWrapper(module))
        model = keras.Sequential([keras.Input((6,)), *layers, L.Dense(1)])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=2)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def everything(model):
    """Return name and bytes of all state."""
    variables = list(model.weights) + list(model.optimizer.weights if KERAS_2 else model.optimizer.variables)
    if KERAS_2:
        return [(v.name, v.get_value().tobytes()) for v in variables]
    variables += [*model.variables, *model.metrics_variables]
    found = [(v.path, keras.ops.convert_to_numpy(v).tobytes()) for v in variables]
    normal = model.layers[0]
    found += [(name, keras.ops.convert_to_numpy(getattr(normal, name)).tobytes()) for name in ("mean", "variance")]
    if BACKEND == "torch":
        found += [(name, bytes(b.cpu().numpy().tobytes())) for name, b in model.layers[-2].module.named_buffers()]
    return found


x = np.random.RandomState(0).randn(ROWS, 6).astype("float32")
y = x.sum(1, keepdims=True)
np.random.seed(3 + rank)
if not KERAS_2:
    keras.utils.set_random_seed(3 + rank)
model = prepare(zoo(), mode=MODE)
np.random.seed(1)


def require_one(calls, rows, *own):
    """Require that all state is one, bit for bit, but that with these words in its name; and the counts by hand."""
    for name, value in everything(model):
        codes = everyones(np.frombuffer(value, np.uint8))
        assert (codes == codes[0]).all() or any(word in name for word in own), (calls, name, codes)
    layer = next(each for each in model.layers if isinstance(each, Counting))
    assert int(np.asarray(keras.backend.get_value(layer.calls) if KERAS_2 else layer.calls)) == calls
    if not KERAS_2:
        assert float(layer.rows) == rows, float(layer.rows)
        assert int(layer.tokens) == 2 * rows


for fits in (1, 2):
    model.fit(x, y, batch_size=8, epochs=EPOCHS, verbose=0, callbacks=[Resets()])
    require_one(6 * EPOCHS * fits, ROWS * EPOCHS * fits)
    folder = sys.argv[1]
    for part in [model, *([] if KERAS_2 else [model.layers[1]])]:  # all workers write a part's file, too
        part.save_weights(f"{folder}/{part.name}.weights.h5")
        part.load_weights(f"{folder}/{part.name}.weights.h5")
    if not KERAS_2:
        model.layers[1].export(f"{folder}/exported") if BACKEND == "tensorflow" else None
        model.layers[1].save_weights(f"{folder}/sharded.weights.json", max_shard_size=4e-7)
        keras.saving.save_model(model, f"{folder}/model.keras")
    own = [keras.ops.convert_to_numpy(model.predict(x, verbose=0)) if not KERAS_2 else model.predict(x)]
    assert (everyones(own[0]) == own[0]).all()  # compiled functions have no other tensors
if MODE == "sync":
    for step in range(1, 6):
        model.train_on_batch(x[8 * step :][:8], y[8 * step :][:8])
        if step in (1, 3, 5):  # the workers keep their own seeds and metrics in a loop
            require_one(12 * EPOCHS + step, 2 * ROWS * EPOCHS + 8 * step, "seed", "loss", "mae", "mean_absolute_error")
    model.fit(x, y, batch_size=8, verbose=0)
    require_one(12 * EPOCHS + 5 + 6, 2 * ROWS * EPOCHS + 40 + ROWS)
