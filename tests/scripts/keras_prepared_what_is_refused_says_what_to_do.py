"""What `prepare` and a prepared fit refuse, what they leave as it is, and what becomes of copies."""

from keras_preamble import *
import copy
import pickle
from platoon_plugins.keras import AveragedEASGD

x, y = data(64)


class Few(keras.utils.Sequence if KERAS_2 else keras.utils.PyDataset):
    """A set with one batch of one row."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return x[:1], y[:1]


# The arguments.
refused(lambda: prepare("model"), "prepare(model)")
refused(lambda: prepare(dense(), mode="synchronous"), '"async" or "sync"')
refused(lambda: prepare(dense(), mode="sync", strategy=EASGD()), "averaged gradients do not use")
refused(lambda: prepare(dense(), mode="sync", scaling=2.0), '"none", "linear" or "sqrt"')
refused(lambda: prepare(dense(), mode="async", scaling="linear"), "pass a number")
refused(lambda: prepare(dense(), strategy=EASGD(), scaling=1.0), "one of the two")
refused(lambda: prepare(dense(), mode="async", scaling=-1.0), "scale")
for period in 0, 2.5, True:
    refused(lambda period=period: prepare(dense(), sync_every=period), f"got sync_every={period!r}")
refused(lambda: prepare(dense(), strategy="easgd"), "got strategy='easgd'")
refused(lambda: prepare(dense(), policy="most"), "most")

# Validation data of fewer rows than workers, also without a look at them before the first validation.
model = prepare(dense())
begun = flat(model.get_weights())
few = f"validation_data: got 1 rows for {size} workers"
refused(lambda: model.fit(x, y, verbose=0, validation_data=(x[:1], y[:1])), few)
refused(
    lambda: model.fit(x, y, verbose=0, validation_data=(x[:2], y[:1])), "validation_data: got arrays of [1, 2] rows"
)
few = f"validation_data: got 1 batches, too few for {size} workers"
refused(lambda: model.fit(x, y, verbose=0, validation_data=Few()), few)
assert (flat(model.get_weights()) == begun).all()  # it has not trained
refused(lambda: model.fit(x, y, verbose=0, validation_split=0.01), "got validation_split=0.01 of 64 rows")
refused(lambda: model.fit(x[:1], y[:1], verbose=0, validation_data=(x, y)), f"got 1 rows for {size} workers")

# A loop without a fit has no center.
refused(lambda: prepare(dense()).train_on_batch(x[:8], y[:8]), 'mode="sync"')

# The longer form within stays as it is; the data of shard too.
model = prepare(dense())
model.fit(*shard(x, y), verbose=0, callbacks=distribute([], rule=EASGD()))
watch = Watch()
model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=[watch])
assert watch.batches == -(-len(x) // (8 * size))
train, valid = shard(x, y, validation_split=0.25, reshuffle=False)
watch = Watch()
model.fit(*train, batch_size=8, verbose=0, validation_data=valid, callbacks=[watch])
assert watch.batches == -(-48 // (8 * size))
if not KERAS_2:
    model.fit(x, y, verbose=0, callbacks=Watch())  # one callback, as Keras takes it
    lists = keras.callbacks.CallbackList([watch], add_history=True, model=model, epochs=1, steps=8)
    model.fit(x, y, verbose=0, callbacks=lists)

# The way of training may change from fit to fit; the rate is scaled once.
model = prepare(dense(optimizer=keras.optimizers.SGD(0.1)), mode="sync", scaling="linear")


def rate_of(model):
    return float(keras.backend.get_value(model.optimizer.lr) if KERAS_2 else model.optimizer.learning_rate)


for _ in range(2):
    model.fit(x, y, verbose=0)
    np.testing.assert_allclose(rate_of(model), 0.1 * size, rtol=1e-6)
prepare(model, mode="sync", scaling="sqrt").fit(x, y, verbose=0)
np.testing.assert_allclose(rate_of(model), 0.1 * size**0.5, rtol=1e-6)
prepare(model, mode="async", scaling=1.0).fit(x, y, verbose=0)
np.testing.assert_allclose(rate_of(model), 0.1, rtol=1e-6)
prepare(model, strategy=AveragedEASGD(scale=None), sync_every=3).fit(x, y, verbose=0)
prepare(model, mode="sync").fit(x, y, verbose=0)
assert len({value.tobytes() for value in everyones(flat(model.get_weights()))}) == 1

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    prepare(dense())  # leaves the common seed, from which data sets draw the seeds of their shuffles
    assert len({value.tobytes() for value in everyones(tf.random.uniform((3,)).numpy())}) == 1
    tf.random.set_seed(None)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(8)
    refused(lambda: prepare(dense()).fit(dataset, verbose=0), "shuffles without a seed")
    tf.random.set_seed(1)
    # As on a GPU, where it is the default of compile.
    compiled = prepare(dense(jit_compile=True), mode="sync")
    compiled.fit(x, y, verbose=0)
    assert not compiled.jit_compile

# A rate that was scaled before a model was saved stays, and is scaled no second time.
if not KERAS_2:
    scaled = f"{sys.argv[1]}/scaled.keras"
    saved = prepare(dense(optimizer=keras.optimizers.SGD(0.1)), mode="sync", scaling="linear")
    saved.fit(x, y, verbose=0)
    saved.save(scaled)
    for again in keras.models.load_model(scaled), copy.deepcopy(saved):
        prepare(again, mode="sync", scaling="linear").fit(x, y, verbose=0)
        np.testing.assert_allclose(rate_of(again), 0.1 * size, rtol=1e-6)
averaging = prepare(dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.1))), scaling="linear")
averaging.fit(x, y, verbose=0)
np.testing.assert_allclose(rate_of(averaging), 0.1 * size, rtol=1e-6)


# A fit that raised leaves nothing that the next one would time twice.
class Fails(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        step, self.depth = getattr(self.model, "train_function", None), 0
        while step := getattr(step, "__wrapped__", None):
            self.depth += 1
        raise ZeroDivisionError


depths, failing, fails = [], prepare(dense()), Fails()
for _ in range(3):
    try:
        failing.fit(x, y, verbose=0, callbacks=[fails])
    except ZeroDivisionError:
        depths.append(fails.depth)
assert depths[1:] == depths[:1] * 2, depths

# Copies are plain models, and those of a synchronous one are refused until they are prepared.
if not KERAS_2:
    path = f"{sys.argv[1]}/model.keras"
    model.save(path)
    pickled = pickle.dumps(model)
    for make in copy.deepcopy, lambda _: pickle.loads(pickled), lambda _: keras.models.load_model(path):  # noqa: S301
        each = make(model)
        assert type(each) is type(model)
        refused(lambda each=each: each.fit(x, y, verbose=0), "prepare(model)")
        each = prepare(make(model))  # another one: on JAX, a fit that fails leaves a model without weights
        each.fit(x, y, verbose=0)  # averages gradients, as before
        assert type(each.optimizer).gradient_average is not None
    clone = keras.models.clone_model(model)
    clone.compile("sgd", "categorical_crossentropy")
    clone.fit(x, y, verbose=0)  # warns
