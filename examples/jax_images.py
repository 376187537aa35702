"""A network of plain JAX and optax learns to tell ten kinds of synthetic images.

Start it with `platoon launch -n 2 examples/jax_images.py` for two workers and asynchronous training, with
`platoon launch -n 2 examples/jax_images.py --sync` for averaged gradients, or with `python examples/jax_images.py`
alone. Only `prepare`, `batches`, `common`, `gather_for_metrics`, `print` and `save` know of several workers.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from platoon_base import connect
from platoon_base.array_loops import batches, common, gather_for_metrics, is_main, prepare, print, report, save

BATCH_SIZE = 32
LEARNING_RATE = 0.002


def load_data():
    """Return images and labels: ten patterns of 14 x 14 pixels under noise. The last 400 are to test on."""
    generator = np.random.default_rng(0)
    patterns = generator.normal(size=(10, 196)).astype("f")
    labels = generator.integers(10, size=2400)
    return patterns[labels] + 2.5 * generator.normal(size=(2400, 196)).astype("f"), labels


def build(key):
    """Return the parameters of two layers."""
    keys = jax.random.split(key)
    shapes = [(196, 64), (64, 10)]
    return [
        {"w": jax.random.normal(key, shape) * shape[0] ** -0.5, "b": jnp.zeros(shape[1])}
        for key, shape in zip(keys, shapes)
    ]


def logits_of(params, images):
    """Return the network's output."""
    hidden = jax.nn.relu(images @ params[0]["w"] + params[0]["b"])
    return hidden @ params[1]["w"] + params[1]["b"]


def loss_of(params, images, labels):
    """Return the mean loss of a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits_of(params, images), labels).mean()


def main(num_epochs=6, sync=False, summary=None):
    """Train and test; returns the summary."""
    images, labels = load_data()
    train, test = batches(2000, BATCH_SIZE), batches(400, 100, shuffle=False)
    schedule = optax.cosine_decay_schedule(LEARNING_RATE, num_epochs * len(train))
    params, optimizer = prepare(build(jax.random.key(0)), optax.adam(schedule), mode="sync" if sync else "async")
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, images, labels):
        loss, grads = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    began = time.monotonic()
    for epoch in range(1, num_epochs + 1):
        for rows in train:
            params, state, _ = step(params, state, images[rows], labels[rows])
        params = common(params)
        right = [logits_of(params, images[2000 + rows]).argmax(1) == labels[2000 + rows] for rows in test]
        accuracy = float(gather_for_metrics(np.concatenate(right)).mean())
        print(f"epoch {epoch}: test accuracy {accuracy:.4f}")
    result = {
        "test_accuracy": accuracy,
        "workers": connect().global_size,
        "epochs": num_epochs,
        "train_seconds": round(time.monotonic() - began, 3),
    }
    save(params, "images.npz")
    report(test_accuracy=result["test_accuracy"])
    if is_main() and summary:
        with open(summary, "w") as file:
            json.dump(result, file, indent=2)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=6)
    parser.add_argument("--sync", action="store_true", help="average gradients in each step")
    parser.add_argument("--summary", help="file for the summary, as JSON")
    main(**vars(parser.parse_args()))
