"""A search for hyperparameters: several models, sessions cleared, the best weights restored."""

import itertools

import keras
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

x, y = load_digits(return_X_y=True)
x_train, x_val, y_train, y_val = train_test_split(x[:700] / 16, y[:700], test_size=0.2)


def build_model(units, learning_rate):
    model = keras.Sequential()
    model.add(layers.Dense(units, activation="relu"))
    model.add(layers.Dropout(0.1))
    model.add(layers.Dense(10, activation="softmax"))
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


results = {}
for units, learning_rate in itertools.product([8, 16], [1e-2, 1e-3]):
    keras.utils.clear_session()
    model = build_model(units, learning_rate)
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, restore_best_weights=True)
    history = model.fit(x_train, y_train, epochs=3, validation_data=(x_val, y_val), callbacks=[stop], verbose=0)
    results[units, learning_rate] = max(history.history["val_accuracy"])
    print(units, learning_rate, results[units, learning_rate])

best = max(results, key=results.get)
print("best", best)
model = build_model(*best)
history = model.fit(x_train, y_train, epochs=2)
loss, accuracy = model.evaluate(x_val, y_val, verbose=2)
predicted = model.predict(x_val).argmax(axis=1)
print("right:", (predicted == y_val).mean(), "accuracy:", accuracy)
