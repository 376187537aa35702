"""
Title: Data parallelism with cooperating processes
Author: the platoon-plugins developers
Date created: 2026/11/26
Last modified: 2026/11/26
Description: Train one Keras model in several processes, on any back end.
Accelerator: NONE
"""

"""
## Introduction

Data parallelism means that several *workers* train one model, each on its own
part of the data. Keras has it built in for several devices of one process
(`keras.distribution`). This guide shows another kind: workers that are
processes of their own, on the processors or GPUs of one machine or of several.
That has three uses:

- it works on PyTorch, JAX and TensorFlow alike, and `fit()` stays as it is;
- workers need not wait for each other, so a slow one does not hold up the rest;
- a worker that dies does not end the training.

There are two ways to keep the workers' models together.

**Asynchronous training.** All workers share a copy of the weights, the
*center*. After each batch a worker and the center move toward each other
(elastic averaging, [Zhang et al., 2015](https://arxiv.org/abs/1412.6651)), and
the worker goes on at once. Validation, checkpoints and the final model have an
average of the center.

**Synchronous training.** Each step uses the mean of all workers' gradients. N
workers with batches of B rows then train exactly as one process does with
batches of N times B rows.

We need the package `platoon-plugins`, which runs on Linux:
"""

"""shell
pip install -q "platoon-plugins[keras,notebook]"
"""

"""
## Setup
"""

import keras
from keras import layers

from platoon_plugins.keras import is_main, notebook_launcher, prepare

"""
## Data and model

Nothing here knows of workers. All of them run this code, so all have the same
data: give random splits and augmentations of whole arrays a seed.
"""

(x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
x_train = x_train[..., None].astype("float32") / 255
x_test = x_test[..., None].astype("float32") / 255


def make_model(optimizer):
    model = keras.Sequential(
        [
            layers.Input(x_train.shape[1:]),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


"""
## Training

One call is new. After `prepare(model)` each `fit()` divides its data among the
workers, deals all rows out again in each epoch, keeps the weights together, and
makes all callbacks see the values over the data of all workers. So
`EarlyStopping` stops all workers in the same epoch.

In a single process `fit()` is that of Keras.
"""


def train(epochs):
    model = prepare(make_model(keras.optimizers.Adam(1e-3)))
    history = model.fit(
        x_train,
        y_train,
        batch_size=128,
        epochs=epochs,
        validation_data=(x_test, y_test),
        callbacks=[keras.callbacks.EarlyStopping(patience=2)],
        verbose=2,
    )
    if is_main():  # one worker saves
        model.save("model.keras")
    return history.history


"""
First with one process:
"""

alone = train(epochs=2)
print("one process:", alone["val_accuracy"][-1])

"""
Then with two. `notebook_launcher()` starts fresh processes, sends them the
function with the variables that it uses, and returns what the leader's call has
returned. Each worker makes half of the steps of an epoch.
"""

together = notebook_launcher(train, (2,), num_processes=2)
print("two workers:", together["val_accuracy"][-1])

"""
The learning rate stays that of one process: the default method makes steps
longer by itself, as N workers make 1/N of the steps each.

## Synchronous training

The mode `"sync"` averages the gradients of each step. A batch N times as large
allows a larger learning rate. With Adam the root of N is a good start, with SGD
it is N: `scaling="sqrt"` and `scaling="linear"`.
"""


def train_synchronously(epochs):
    model = make_model(keras.optimizers.Adam(1e-3))
    model = prepare(model, mode="sync", scaling="sqrt")
    history = model.fit(
        x_train,
        y_train,
        batch_size=128,
        epochs=epochs,
        validation_data=(x_test, y_test),
        verbose=2,
    )
    return history.history


averaged = notebook_launcher(train_synchronously, (2,), num_processes=2)
print("two workers, averaged gradients:", averaged["val_accuracy"][-1])

"""
## Scripts

Outside of notebooks the same lines stand in a plain script, which is started by
`platoon launch` in place of `python`:

```sh
platoon launch -n 2 train.py               # two workers on the processors
platoon launch -D cuda0 cuda1 train.py     # one on each of two GPUs
```

A terminal then shows a table of the workers: their epochs, batches per second
and losses. `--max-restarts 3` starts workers again that fail, and
`--checkpoint-every 60 --resume DIR` lets a job go on after a kill.

## Which of the two?

Take asynchronous training first. It gains most where workers are unequal or the
link between them is slow. Take averaged gradients where results must be the
same in each run, or where all workers are equally fast and you tune the
learning rate for their number. Two asynchronous runs are never alike bit by
bit.

## References

- Sixin Zhang, Anna Choromanska, Yann LeCun: [Deep learning with Elastic
  Averaging SGD](https://arxiv.org/abs/1412.6651)
- Priya Goyal and others: [Accurate, Large Minibatch
  SGD](https://arxiv.org/abs/1706.02677)
"""
