"""A metric, a loss and an activity regularizer of classes of one's own, as in the guide to training."""

import keras
from keras import layers, ops
from sklearn.datasets import load_digits


class CustomMSE(keras.losses.Loss):
    def __init__(self, regularization_factor=0.1, name="custom_mse"):
        super().__init__(name=name)
        self.regularization_factor = regularization_factor

    def call(self, y_true, y_pred):
        mse = ops.mean(ops.square(y_true - y_pred), axis=-1)
        reg = ops.mean(ops.square(0.5 - y_pred), axis=-1)
        return mse + reg * self.regularization_factor


class CategoricalTruePositives(keras.metrics.Metric):
    def __init__(self, name="categorical_true_positives", **kwargs):
        super().__init__(name=name, **kwargs)
        self.true_positives = self.add_variable(shape=(), name="ctp", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        values = ops.equal(ops.argmax(y_true, axis=1), ops.argmax(y_pred, axis=1))
        values = ops.cast(values, "float32")
        if sample_weight is not None:
            values = ops.multiply(values, ops.cast(sample_weight, "float32"))
        self.true_positives.assign_add(ops.sum(values))

    def result(self):
        return self.true_positives.value

    def reset_state(self):
        self.true_positives.assign(0.0)


class ActivityRegularizationLayer(layers.Layer):
    def call(self, inputs):
        self.add_loss(ops.mean(inputs) * 0.1)
        return inputs


x, y = load_digits(return_X_y=True)
x_train, y_train = x[:640] / 16, keras.utils.to_categorical(y[:640], 10)
inputs = keras.Input(shape=(64,), name="digits")
hidden = layers.Dense(16, activation="relu", kernel_regularizer="l2")(inputs)
hidden = ActivityRegularizationLayer()(hidden)
outputs = layers.Dense(10, activation="softmax", name="predictions")(hidden)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(
    optimizer=keras.optimizers.RMSprop(learning_rate=1e-3),
    loss=CustomMSE(),
    metrics=[CategoricalTruePositives(), keras.metrics.F1Score(average="macro")],
)
history = model.fit(x_train, y_train, batch_size=64, epochs=2, validation_split=0.2)
