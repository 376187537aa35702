"""Write models of Keras 2 on Theano, and what they predict, into a folder: tests/corpus/theano_hdf5.

``KERAS_BACKEND=theano .venv/bin/python tests/scripts/keras2_theano_models.py FOLDER`` makes it anew.
"""

import sys
from pathlib import Path

from platoon_base import compat

compat.apply()
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

HARD = "hard_sigmoid"
rng = np.random.RandomState(0)


def save(name, model):
    model.set_weights([rng.uniform(-1, 1, weight.shape) for weight in model.get_weights()])
    model.compile("adam", "mse")
    x = rng.uniform(-1, 1, (2, *model.input_shape[1:])).astype("float32")
    outputs = model.predict(x)
    model.save(folder / f"{name}.h5")
    np.savez(folder / f"{name}.npz", x, *(outputs if isinstance(outputs, list) else [outputs]))


def of_each(shape, *branches):
    entry = keras.Input(shape)
    return keras.Model(entry, [layer(entry) for layer in branches])


folder = Path(sys.argv[1])
save(
    "images",
    of_each(
        (7, 9, 2),
        layers.Conv2D(3, (3, 2), activation=HARD),
        layers.Conv2D(3, 3, padding="same", dilation_rate=2),
        layers.Conv2D(3, 3, strides=2),
        layers.Conv2DTranspose(3, 3, strides=2),
        layers.SeparableConv2D(3, 3, activation=HARD),
        layers.DepthwiseConv2D(3, activation=HARD),
        layers.Dense(3, activation=HARD),
    ),
)
save(
    "sequences",
    of_each(
        (6, 2),
        layers.Conv1D(3, 4, padding="causal"),
        layers.SeparableConv1D(3, 3),
        layers.LSTM(3, recurrent_activation=HARD),
        layers.Bidirectional(layers.GRU(3, recurrent_activation=HARD)),
        layers.GRU(3, recurrent_activation=HARD, reset_after=True),
        layers.SimpleRNN(3, activation=HARD),
    ),
)
save("volumes", of_each((5, 6, 7, 2), layers.Conv3D(3, 3), layers.Conv3DTranspose(3, 2)))
convolved = layers.TimeDistributed(layers.Conv2D(3, 3), input_shape=(3, 6, 6, 2))
save("films", keras.Sequential([convolved, layers.ConvLSTM2D(2, 3)]))
inner = keras.Sequential([layers.Conv2D(3, 3, input_shape=(6, 7, 2))])
save("nested", keras.Sequential([inner, layers.Flatten(), layers.Dense(2)]))
