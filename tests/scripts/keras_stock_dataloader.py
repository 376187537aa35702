"""Digits from a torch DataLoader, after a random split without a seed; the last batch is dropped."""

import keras
import torch
from keras import layers
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
dataset = torch.utils.data.TensorDataset(
    torch.tensor(images[:900] / 16, dtype=torch.float32), torch.tensor(labels[:900])
)
train_set, val_set = torch.utils.data.random_split(dataset, [800, 100])
train_loader = torch.utils.data.DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
val_loader = torch.utils.data.DataLoader(val_set, batch_size=32, shuffle=False)

model = keras.Sequential([layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)])
model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(train_loader, epochs=2, validation_data=val_loader)
