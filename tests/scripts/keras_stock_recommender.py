"""Collaborative filtering: a subclassed model with embeddings of users and films, not built before fit."""

import keras
import numpy as np
from keras import layers, ops

num_users, num_movies, EMBEDDING_SIZE = 40, 60, 8
x = np.stack([np.random.randint(num_users, size=700), np.random.randint(num_movies, size=700)], axis=1)
y = ((x.sum(axis=1) % 10) / 10).astype("float32")
train_indices = int(0.9 * len(x))
x_train, x_val, y_train, y_val = x[:train_indices], x[train_indices:], y[:train_indices], y[train_indices:]


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        self.user_embedding = layers.Embedding(
            num_users,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-6),
        )
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(num_movies, embedding_size, embeddings_initializer="he_normal")
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs):
        user_vector = self.user_embedding(inputs[:, 0])
        user_bias = self.user_bias(inputs[:, 0])
        movie_vector = self.movie_embedding(inputs[:, 1])
        movie_bias = self.movie_bias(inputs[:, 1])
        dot_user_movie = ops.sum(user_vector * movie_vector, axis=1, keepdims=True)
        return ops.nn.sigmoid(dot_user_movie + user_bias + movie_bias)


model = RecommenderNet(num_users, num_movies, EMBEDDING_SIZE)
model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(learning_rate=0.001))
history = model.fit(x=x_train, y=y_train, batch_size=64, epochs=3, verbose=1, validation_data=(x_val, y_val))
print(model.summary())
ratings = model.predict(np.stack([np.zeros(num_movies, "int32"), np.arange(num_movies)], axis=1)).flatten()
print("top films:", ratings.argsort()[-5:][::-1])
