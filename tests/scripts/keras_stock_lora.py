"""LoRA: a trained model gets small matrices beside its kernels, is trained on, and quantized."""

import keras
from keras import layers
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16
first, second = y[:900] < 5, y[:900] >= 5

model = keras.Sequential([keras.Input((64,)), layers.Dense(32, "relu"), layers.Dense(10, "softmax", name="head")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x[:900][first], y[:900][first], epochs=2)

for layer in model.layers:
    if isinstance(layer, layers.Dense):
        layer.enable_lora(rank=4)
model.summary()
model.compile(
    keras.optimizers.AdamW(learning_rate=5e-3), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"]
)
history = model.fit(x[:900][second], y[:900][second], batch_size=16, epochs=2)
before = model.evaluate(x[900:1000], y[900:1000], verbose=0)
model.save("lora.keras")
quantized = keras.models.load_model("lora.keras")
quantized.quantize("int8")
quantized.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
after = quantized.evaluate(x[900:1000], y[900:1000], verbose=0)
print("loss", before[0], "quantized", after[0])
