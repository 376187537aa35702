"""By a fit without `distribute`, or by `train_on_batch`; a fit of another model is only warned of."""

from keras_preamble import *
from platoon_base.errors import PlatoonWarning

x, y = data(32)
own = dict(zip("xy", shard(x, y)), batch_size=8, verbose=0)


def said(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught if issubclass(each.category, PlatoonWarning)]


lone = dense()
(warning,) = said(lambda: lone.fit(**own))
assert "without distribute(...) in a job of 2 workers" in warning, warning
assert not said(lambda: lone.fit(**own)), "said twice"

for averaged in (False,) if KERAS_2 else (False, True):
    model = dense(optimizer=DistributedOptimizer("sgd") if averaged else "sgd")
    model.fit(**own, callbacks=distribute())
    before = flat(model.get_weights())
    refused(lambda: model.fit(**own), "without distribute(...)")
    refused(lambda: model.train_on_batch(own["x"][:8], own["y"][:8]), "without distribute(...)")
    model.compile("adam", loss="categorical_crossentropy", metrics=["accuracy"])
    refused(lambda: model.fit(**own), "got a fit without distribute(...)")
    assert (flat(model.get_weights()) == before).all()
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)

weights = [np.zeros(3, "float32")]
worker.init_shared_params(weights, EASGD())
model.fit(**own)
if not KERAS_2:  # Averaged gradients leave the script's own parameters alone.
    weights[0] += 1 + worker.global_rank
    mine = weights[0].copy()
    other = dense(optimizer=DistributedOptimizer("sgd"))
    seen = keras.callbacks.LambdaCallback(on_test_end=lambda logs: np.testing.assert_array_equal(weights[0], mine))
    other.fit(**own, validation_data=(x, y), epochs=2, callbacks=distribute([seen]))
    np.testing.assert_array_equal(weights[0], mine)
worker.release_shared_params()
