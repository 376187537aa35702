"""A Siamese network for pairs of digits: two inputs in a list, a contrastive loss of its own."""

import random

import keras
import numpy as np
from keras import ops
from sklearn.datasets import load_digits

margin = 1


def make_pairs(x, y):
    num_classes = max(y) + 1
    digit_indices = [np.where(y == i)[0] for i in range(num_classes)]
    pairs, labels = [], []
    for idx1 in range(len(x)):
        label1 = y[idx1]
        idx2 = random.choice(digit_indices[label1])
        pairs += [[x[idx1], x[idx2]]]
        labels += [0]
        label2 = random.randint(0, num_classes - 1)
        while label2 == label1:
            label2 = random.randint(0, num_classes - 1)
        idx2 = random.choice(digit_indices[label2])
        pairs += [[x[idx1], x[idx2]]]
        labels += [1]
    return np.array(pairs), np.array(labels).astype("float32")


x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
pairs_train, labels_train = make_pairs(x[:200], y[:200])
pairs_val, labels_val = make_pairs(x[200:260], y[200:260])
x_train_1, x_train_2 = pairs_train[:, 0], pairs_train[:, 1]
x_val_1, x_val_2 = pairs_val[:, 0], pairs_val[:, 1]


def euclidean_distance(vects):
    first, second = vects
    sum_square = ops.sum(ops.square(first - second), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(sum_square, keras.backend.epsilon()))


inputs = keras.layers.Input((64,))
hidden = keras.layers.BatchNormalization()(inputs)
embedding_network = keras.Model(inputs, keras.layers.Dense(10, activation="tanh")(hidden))

input_1 = keras.layers.Input((64,))
input_2 = keras.layers.Input((64,))
merge_layer = keras.layers.Lambda(euclidean_distance, output_shape=(1,))(
    [embedding_network(input_1), embedding_network(input_2)]
)
output_layer = keras.layers.Dense(1, activation="sigmoid")(keras.layers.BatchNormalization()(merge_layer))
siamese = keras.Model(inputs=[input_1, input_2], outputs=output_layer)


def loss(margin=1):
    def contrastive_loss(y_true, y_pred):
        square_pred = ops.square(y_pred)
        margin_square = ops.square(ops.maximum(margin - (y_pred), 0))
        return ops.mean((1 - y_true) * square_pred + (y_true) * margin_square)

    return contrastive_loss


siamese.compile(loss=loss(margin=margin), optimizer="RMSprop", metrics=["accuracy"])
siamese.summary()
history = siamese.fit(
    [x_train_1, x_train_2],
    labels_train,
    validation_data=([x_val_1, x_val_2], labels_val),
    batch_size=16,
    epochs=2,
)
results = siamese.evaluate([x_val_1, x_val_2], labels_val)
print("test loss, test acc:", results)
model = siamese
