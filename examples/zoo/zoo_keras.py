"""Train one of the zoo's networks in Keras 3 for some steps, and print images per second and where the time goes.

KERAS_BACKEND=torch platoon launch -n 2 zoo_keras.py --model resnet50 --width 0.1 --image 32 --batch 8
KERAS_BACKEND=jax platoon launch -D cuda0 cuda1 zoo_keras.py --model vit --rule easgd
KERAS_BACKEND=torch python zoo_keras.py --model vgg16 --data digits --image 32 --width 0.1
"""

# ruff: noqa: I001 - prepare first: its import seeds the generators of Keras alike on all workers

from platoon_plugins.keras import EASGD, prepare
import keras
import numpy as np
from keras_models import MODELS
from zoo_data import load
from zoo_measure import WARM_UP, Measurement, parser, show

from platoon_base import connect
from platoon_base.worker import LOADING

MOMENTUM = 0.9
PREPARED = {"bsp": {"mode": "sync"}, "easgd": {"strategy": EASGD()}, "default": {}}


class Batches(keras.utils.PyDataset):
    """So many mini-batches for all workers together; `prepare` divides them."""

    def __init__(self, worker, images, labels, batch, number):
        super().__init__()
        self.worker, self.images, self.labels, self.batch, self.number = worker, images, labels, batch, number

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        with self.worker.advanced.clock.phase(LOADING):  # the adapter times it too, but not under plain python
            begin = index * self.batch % (len(self.images) - self.batch + 1)
            rows = np.arange(begin, begin + self.batch)
            return self.images[rows], self.labels[rows]


class Steps(keras.callbacks.Callback):
    """Measures the steps behind the first ones."""

    def __init__(self, worker, measurement, steps, counted):
        super().__init__()
        self.counted = counted
        self.worker, self.measurement, self.last, self.done = worker, measurement, WARM_UP + steps, 0

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        if not self.counted:  # by the adapter: the fit of one worker is that of Keras alone
            self.worker.progress(steps=1)
        if self.done in (WARM_UP, self.last):
            self.loss = float(logs["loss"])  # waits for the device
            (self.measurement.begin if self.done == WARM_UP else self.measurement.end)()


def prepared(model, options):
    """Return the model, trained on all workers by the rule."""
    return prepare(model, **PREPARED[options.rule])


def main(options, distributed=prepared, divided=True):
    """Train; returns the measurement.

    ``distributed(model, options)`` returns the compiled model as all workers train it. ``divided`` tells whether its
    fit divides the mini-batches among the workers.
    """
    worker = connect()
    number = (WARM_UP + options.steps) * (worker.global_size if divided else 1)
    rows = 2 * options.batch * worker.global_size
    images, labels, classes = load(options.data, options.image, rows, channels_first=False)
    model = MODELS[options.model](images.shape[1:], classes, options.width)
    model.compile(keras.optimizers.SGD(options.rate, MOMENTUM), "sparse_categorical_crossentropy")
    model = distributed(model, options)
    measurement = Measurement(worker, options)
    steps = Steps(worker, measurement, options.steps, counted=divided and worker.global_size > 1)
    model.fit(Batches(worker, images, labels, options.batch, number), callbacks=[steps], shuffle=False, verbose=0)
    result = measurement.result(steps.loss, model.count_params())
    show(worker, {"framework": keras.backend.backend(), **result}, options.summary)
    return result


if __name__ == "__main__":
    main(parser(__doc__, MODELS, image=224).parse_args())
