"""A model made or restored from the newest checkpoint, as the guide has it; then trained on from there."""

import os

import keras
from keras import layers
from sklearn.datasets import load_digits

checkpoint_dir = "./ckpt"
if not os.path.exists(checkpoint_dir):
    os.makedirs(checkpoint_dir, exist_ok=True)


def get_compiled_model():
    inputs = keras.Input(shape=(64,), name="digits")
    x = layers.Dense(16, activation="relu", name="dense_1")(inputs)
    outputs = layers.Dense(10, activation="softmax", name="predictions")(x)
    model = keras.Model(inputs=inputs, outputs=outputs)
    model.compile(
        optimizer="rmsprop",
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
    )
    return model


def make_or_restore_model():
    checkpoints = [checkpoint_dir + "/" + name for name in os.listdir(checkpoint_dir)]
    if checkpoints:
        latest_checkpoint = max(checkpoints, key=os.path.getctime)
        print("Restoring from", latest_checkpoint)
        return keras.models.load_model(latest_checkpoint)
    print("Creating a new model")
    return get_compiled_model()


x, y = load_digits(return_X_y=True)
x_train, y_train = x[:600] / 16, y[:600]
model = make_or_restore_model()
callbacks = [
    keras.callbacks.ModelCheckpoint(filepath=checkpoint_dir + "/model-loss={loss:.2f}.keras", save_freq=5),
    keras.callbacks.CSVLogger("restore.csv", append=True),
]
model.fit(x_train, y_train, epochs=2, callbacks=callbacks)
model = keras.models.load_model(max(map(checkpoint_dir.__add__, ["/" + n for n in os.listdir(checkpoint_dir)])))
history = model.fit(x_train, y_train, epochs=4, initial_epoch=2, callbacks=callbacks)
