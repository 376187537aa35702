from keras_preamble import *
import keras.backend as K

WIDTH = 20_000


class Scale(L.Layer):
    def build(self, shape):
        self.w = self.add_weight("w", (WIDTH,), initializer="ones")
        self.b = self.add_weight("b", (WIDTH,), initializer="zeros")
        super().build(shape)

    def call(self, x):
        return K.tanh(x * self.w + self.b)


def make(optimizer):
    model = keras.Sequential([Scale(input_shape=(WIDTH,))])
    model.compile(optimizer, "mean_squared_error")
    assert all("gpuarray" in type(weight.type).__module__ for weight in model.weights)
    return model


rng = np.random.RandomState(1)
x = rng.randn(32, WIDTH).astype("f4")
y = np.tanh(2 * x + 0.5).astype("f4")
rows = dict(batch_size=4, epochs=3, shuffle=False, verbose=0)
