"""A fit that is interrupted by an error, and goes on from its backup."""

import keras
import numpy as np


class InterruptingCallback(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise RuntimeError("Interrupting!")


callback = keras.callbacks.BackupAndRestore(backup_dir="backup")
model = keras.models.Sequential([keras.layers.Dense(10)])
model.compile(keras.optimizers.SGD(), loss="mse")
model.build(input_shape=(None, 20))
try:
    model.fit(
        np.ones((128, 20)), np.zeros((128, 10)), epochs=4, batch_size=16, callbacks=[callback, InterruptingCallback()]
    )
except RuntimeError as exc:
    print("interrupted:", exc)
history = model.fit(np.ones((128, 20)), np.zeros((128, 10)), epochs=4, batch_size=16, callbacks=[callback])
print("epochs after the interruption:", len(history.history["loss"]))
assert len(history.history["loss"]) == 2
