"""Workers that train and do not cooperate: when it is said, in which words, and which frames of a stack train."""

import inspect

import numpy as np
import pytest

from platoon_base import compat
from platoon_base.worker_process.apart import AFTER_S, Cooperation, Watch, intend, trains, unused, watch

pytestmark = pytest.mark.base


@pytest.fixture(autouse=True)
def of_no_job():
    yield
    watch(lambda: Cooperation(joined=False))


def training():
    """Return the framework by which this thread trains now, as the watch finds it."""
    return trains(inspect.currentframe().f_back)


def warnings_of(known, framework="torch", seconds=AFTER_S + 1, every_s=0.5):
    decision = Watch(2)
    return [decision.sample(k * every_s, framework, known(k), "Do this") for k in range(round(seconds / every_s))][-1]


def test_a_training_of_half_a_minute_without_a_word_to_the_others_is_said():
    found = warnings_of(lambda k: Cooperation())
    assert "and combined no parameters and no gradients with the others: the 2 workers train 2 separate" in found
    assert found.endswith("models, which is correct only if intended, as in a search. Do this")
    assert "not joined its job" in warnings_of(lambda k: Cooperation(joined=False))
    assert warnings_of(lambda k: Cooperation(), seconds=AFTER_S) == ""


def test_what_trains_nothing_or_cooperates_is_not():
    assert warnings_of(lambda k: Cooperation(), framework="", seconds=3600) == ""  # it compiles, evaluates, or maps
    assert warnings_of(lambda k: Cooperation(combined=True), seconds=3600) == ""
    for before in (1, 1000):  # steps of earlier fits
        assert warnings_of(lambda k, steps=before: Cooperation(steps=steps), framework="", seconds=3600) == ""
    assert warnings_of(lambda k: Cooperation(combined=True, steps=k), framework="", seconds=3600) == ""


def test_waits_for_other_workers_do_not_count():
    def waits_until(end):
        return lambda k: Cooperation(waits=10 <= k < end)

    assert warnings_of(waits_until(1000), seconds=500) == ""
    assert warnings_of(waits_until(1000), seconds=500 + AFTER_S - 10) == ""  # the training begins behind the wait
    assert "2 separate models" in warnings_of(waits_until(1000), seconds=500 + AFTER_S)


def test_steps_that_the_script_counts_show_a_training_too():
    found = warnings_of(lambda k: Cooperation(steps=k), framework="")
    assert found.startswith("this worker has counted 61 steps and combined no")
    assert ": if it trains in them, the 2 workers train 2 separate models" in found


def test_an_object_that_is_never_used_is_named_with_its_line():
    changed = False
    line = inspect.currentframe().f_lineno + 1
    average = intend("the average", "was never called: call it", lambda: changed)
    combined = Cooperation(combined=True)
    assert warnings_of(lambda k: combined) == ""  # its parameters have not changed
    changed = True
    expected = f"intend (test_apart.py:{line}) was never called: call it. Until then each worker trains its own model"
    assert warnings_of(lambda k: combined).startswith(expected)
    assert warnings_of(lambda k: Cooperation(combined=True, synced=True)) == ""  # a rule shares the model
    average.used = True
    assert warnings_of(lambda k: combined) == ""
    assert warnings_of(lambda k: Cooperation()) == ""  # it is about to combine: the model is compiled first


def test_an_object_of_a_second_training_is_not_named_before_it_could_be_used():
    decision, second = Watch(2), []
    for k in range(300):
        if k == 150:  # after 75 s of the first training, such as a fold
            second.append(intend("prepare", "was followed by no step", lambda: True))
        said = decision.sample(k * 0.5, "torch", Cooperation(combined=True, steps=k))
        assert not said or k * 0.5 >= 75 + AFTER_S
    assert "was followed by no step" in said


def test_the_frames_of_theanos_training():
    compat.apply()
    theano = pytest.importorskip("theano", reason="needs Theano: see docs/install.md")
    from theano.sandbox.rng_mrg import MRG_RandomStreams
    from theano.tensor.shared_randomstreams import RandomStreams

    seen = []

    class Watched(theano.Op):
        itypes = otypes = (theano.tensor.dscalar,)

        def perform(self, node, inputs, outputs):
            seen.append(training())
            outputs[0][0] = inputs[0]

    w, total = theano.shared(np.ones(2)), theano.shared(1.0)
    watched = Watched()(w.sum())
    theano.function([], watched, updates=[(w, w + 1)])()
    theano.function([], watched)()
    theano.function([], watched, updates=[(total, total + w.sum())])()  # as evaluations do
    for random in (MRG_RandomStreams(1), RandomStreams(1)):
        theano.function([], watched * random.uniform((2,)))()
    assert seen == ["theano", "", "", "", ""]


def test_the_frames_of_torchs_training():
    torch = pytest.importorskip("torch", reason="needs torch: `make test` runs this file in .nox/keras3")
    seen = []

    def closure():
        seen.append(training())
        waits = intend("it", "waits", lambda: seen.append(training()))
        unused(Cooperation())  # a call of this package, in which a worker may wait for the others
        assert not waits.used
        return torch.zeros(())

    torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1).step(closure)
    assert seen == ["torch", ""]
    weight = torch.zeros(2, requires_grad=True)
    weight.register_hook(lambda gradient: seen.append(training()))
    weight.sum().backward()  # also where inputs are changed for an evaluation
    assert seen[2:] == [""]


@pytest.mark.keras
def test_the_frames_of_kerass_training():
    compat.apply()
    keras = pytest.importorskip("keras", reason="needs Keras: see docs/keras.md")
    seen = {}
    x = np.zeros((4, 2), "float32")
    inputs = keras.layers.Input((2,))
    model = keras.models.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen["fit"] = training()

        def on_test_batch_begin(self, batch, logs=None):
            seen["evaluate"] = training()

    expected = {"fit": "keras", "evaluate": ""}
    if hasattr(model, "_make_train_function"):  # of Keras 2

        def make(make=model._make_train_function):
            seen.setdefault("compile", training())
            make()

        model._make_train_function = make
        expected["compile"] = ""
    model.fit(x, x[:, :1], verbose=0, callbacks=[Look()])
    model.evaluate(x, x[:, :1], verbose=0, callbacks=[Look()])
    assert seen == expected
