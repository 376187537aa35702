"""Metric learning: batches that a PyDataset draws at random; a train_step that returns its loss, for each back end."""

import random

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

num_classes = 10
images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
class_idx_to_train_idxs = {c: np.flatnonzero(labels[:900] == c) for c in range(num_classes)}


class AnchorPositivePairs(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return self.batches

    def __getitem__(self, _idx):
        x = np.empty((2, num_classes, 8, 8, 1), dtype="float32")
        for class_idx in range(num_classes):
            examples_for_class = class_idx_to_train_idxs[class_idx]
            anchor_idx = random.choice(examples_for_class)
            positive_idx = random.choice(examples_for_class)
            while positive_idx == anchor_idx:
                positive_idx = random.choice(examples_for_class)
            x[0, class_idx] = images[anchor_idx]
            x[1, class_idx] = images[positive_idx]
        return x


class EmbeddingModel(keras.Model):
    def compile(self, optimizer, loss_fn):
        super().compile(optimizer=optimizer)
        self.loss_fn = loss_fn

    def loss_of(self, data):
        anchors, positives = data[0], data[1]
        anchor_embeddings = self(anchors, training=True)
        positive_embeddings = self(positives, training=True)
        similarities = ops.einsum("ae,pe->ap", anchor_embeddings, positive_embeddings) / 0.2
        sparse_labels = ops.arange(num_classes)
        return self.loss_fn(sparse_labels, similarities)


if keras.backend.backend() == "torch":
    import torch

    class Trained(EmbeddingModel):
        def train_step(self, data):
            if isinstance(data, (tuple, list)):
                data = data[0]
            self.zero_grad()
            loss = self.loss_of(data)
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in self.trainable_variables], self.trainable_variables)
            return {"loss": loss}

elif keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    class Trained(EmbeddingModel):
        def train_step(self, data):
            if isinstance(data, (tuple, list)):
                data = data[0]
            with tf.GradientTape() as tape:
                loss = self.loss_of(data)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

else:
    import jax

    class Trained(EmbeddingModel):
        def stateless_loss(self, trainable_variables, non_trainable_variables, data):
            mapping = [
                *zip(self.trainable_variables, trainable_variables),
                *zip(self.non_trainable_variables, non_trainable_variables),
            ]
            with keras.StatelessScope(state_mapping=mapping) as scope:
                loss = self.loss_of(data)
            return loss, [scope.get_current_value(v) for v in self.non_trainable_variables]

        def train_step(self, state, data):
            if isinstance(data, (tuple, list)):
                data = data[0]
            trainable_variables, non_trainable_variables, optimizer_variables, metrics_variables = state
            (loss, non_trainable_variables), gradients = jax.value_and_grad(self.stateless_loss, has_aux=True)(
                trainable_variables, non_trainable_variables, data
            )
            trainable_variables, optimizer_variables = self.optimizer.stateless_apply(
                optimizer_variables, gradients, trainable_variables
            )
            return {"loss": loss}, (
                trainable_variables,
                non_trainable_variables,
                optimizer_variables,
                metrics_variables,
            )


inputs = layers.Input(shape=(8, 8, 1))
x = layers.Conv2D(filters=8, kernel_size=3, strides=2, activation="relu")(inputs)
x = layers.GlobalAveragePooling2D()(x)
embeddings = layers.Dense(units=8, activation=None)(x)
embeddings = layers.UnitNormalization()(embeddings)
model = Trained(inputs, embeddings)
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=1e-3),
    loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
history = model.fit(AnchorPositivePairs(batches=30), epochs=2)
near_neighbours = np.argsort(model.predict(images[900:1000]) @ model.predict(images[900:1000]).T)[:, -5:]
print("neighbours", near_neighbours[0])
