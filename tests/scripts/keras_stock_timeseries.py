"""Windows of a series, from timeseries_dataset_from_array."""

import keras
import numpy as np
from keras import layers

series = np.sin(np.arange(600) / 9.0)[:, None] + np.random.normal(scale=0.1, size=(600, 3))
x, y = series[:-10].astype("float32"), series[10:, 0].astype("float32")
dataset_train = keras.preprocessing.timeseries_dataset_from_array(
    x[:450], y[:450], sequence_length=12, sampling_rate=2, batch_size=32, shuffle=True
)
dataset_val = keras.preprocessing.timeseries_dataset_from_array(
    x[450:], y[450:], sequence_length=12, sampling_rate=2, batch_size=32
)
for batch in dataset_train.take(1):
    inputs, targets = batch
print("Input shape:", inputs.numpy().shape)

inputs = keras.layers.Input(shape=(inputs.shape[1], inputs.shape[2]))
outputs = layers.Dense(1)(layers.LSTM(8)(inputs))
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001), loss="mse")
es_callback = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=5)
modelckpt_callback = keras.callbacks.ModelCheckpoint(
    monitor="val_loss", filepath="model_checkpoint.weights.h5", verbose=1, save_weights_only=True, save_best_only=True
)
history = model.fit(dataset_train, epochs=2, validation_data=dataset_val, callbacks=[es_callback, modelckpt_callback])
