from keras_preamble import *
from keras_losses_tokens import *


def plain(optimizer):
    model = keras.Sequential([keras.Input((7,)), L.Dense(3, activation="softmax")])
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(reduction=None))
    return model


require_equal("none", lambda wrap: plain(wrap(keras.optimizers.SGD(0.01))), tolerance=2e-5)
