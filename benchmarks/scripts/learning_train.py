"""Train one task by one method, and write down what each validation gave.

    platoon launch -n 2 learning_train.py FILE --task digits --method easgd --rate 0.01 --seed 1 --epochs 5

Started by benchmarks/learning.py. Rank 0 writes the file.
"""

# ruff: noqa: I001 - platoon_plugins.keras comes before keras

import argparse
import json
import time
from pathlib import Path

from platoon_plugins.keras import distribute, shard
import keras
import numpy as np

from learning_tasks import METHODS, TASKS
from platoon_base import connect


class Curve(keras.callbacks.Callback):
    """Keeps steps, seconds and the accuracy on all validation rows, at the end of each epoch.

    Steps are those of this worker. Seconds, which include validation, begin with its second step: the first one may
    compile.
    """

    def __init__(self):
        super().__init__()
        self.steps, self.points = 0, []

    def on_train_batch_begin(self, batch, logs=None):
        self.steps += 1
        if self.steps <= 2:
            self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.points.append((self.steps, time.perf_counter() - self.began, float(logs["val_accuracy"])))


def build(units):
    layers = [keras.layers.Dense(n, activation="relu") for n in units[1:-1]]
    last = keras.layers.Dense(units[-1], activation="softmax")
    return keras.Sequential([keras.layers.InputLayer((units[0],)), *layers, last])


def main(args):
    worker, task, method = connect(), TASKS[args.task], METHODS[args.method]
    rows, validation_rows = task.data()
    getattr(keras.utils, "set_random_seed", np.random.seed)(args.seed)  # Keras 2 on Theano knows NumPy's alone
    model, curve = build(task.units), Curve()
    optimizer, options = method.arguments(keras.optimizers.Adam(args.rate))
    model.compile(optimizer, loss="categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        *shard(*rows),
        validation_data=shard(*validation_rows),
        batch_size=task.batch_size,
        epochs=args.epochs,
        callbacks=[curve] if options is None else distribute([curve], **options),
        verbose=0,
    )
    if worker.global_rank == 0:
        result = {
            "keras": keras.__version__,
            "parameters": int(sum(weights.size for weights in model.get_weights())),
            "workers": worker.global_size,
            "curve": curve.points,
        }
        Path(args.file).write_text(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="for the results, as JSON")
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    main(parser.parse_args())
