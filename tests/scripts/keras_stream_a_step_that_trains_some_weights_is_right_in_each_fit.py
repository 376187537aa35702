"""Programs are compiled once, in the first fit; workers have other numbers of batches. Against NumPy."""

from keras_stream_head import *

rng = np.random.RandomState(4)
x, y = rng.rand(2, 20, 3).astype("f4"), rng.rand(2, 20, 1).astype("f4")
batches = [3, 5]
model = make()
w1, b1, w2, b2 = (np.array(v, "f8") for v in model.get_weights())
for fit in range(3):
    n = 4 * batches[rank]
    model.fit(x[rank, :n], y[rank, :n], batch_size=4, shuffle=False, verbose=0, callbacks=distribute())
    assert model.optimizer.gradient_average.on_device
    for k in range(5):
        theirs = [r for r in range(2) if k < batches[r]]
        rows = slice(4 * k, 4 * k + 4)
        hidden = np.maximum(np.concatenate([x[r, rows] for r in theirs]) @ w1 + b1, 0)
        errors = hidden @ w2 + b2 - np.concatenate([y[r, rows] for r in theirs])
        w2, b2 = w2 - 0.1 * hidden.T @ errors / len(errors), b2 - 0.1 * errors.mean(0)
    for mine, right in zip(model.get_weights(), [w1, b1, w2, b2]):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6, err_msg=f"fit {fit}")
