"""Train with one tracker, that is named: with a run of the leader alone, or with one of each worker (``--each``).

``--epochs=N`` is how many epochs there are.
"""

import sys

import keras
import numpy as np

from platoon_plugins.keras import is_main, prepare

rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1, activation="sigmoid")])
model.compile("sgd", "binary_crossentropy")
logs = {}
callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, values: logs.update(values))]
tracked = is_main() or "--each" in sys.argv
if "wandb" in sys.argv:
    import wandb

    wandb.init(project="test", mode=None if tracked else "disabled")
    callbacks.append(keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, values: wandb.log(values)))
if "mlflow" in sys.argv:
    import mlflow

    if tracked:
        mlflow.autolog(log_models=False, log_datasets=False)
if "tensorboard" in sys.argv:
    callbacks.append(keras.callbacks.TensorBoard("own"))
epochs = next((int(word[9:]) for word in sys.argv if word.startswith("--epochs=")), 2)
model = prepare(model)
model.fit(x, y, 8, epochs, validation_data=(x, y), callbacks=callbacks, verbose=0)
if "wandb" in sys.argv:
    wandb.finish()
if is_main():
    print("val_loss", logs["val_loss"])
