from keras_preamble import *

rng = np.random.RandomState(0)
tokens, labels = rng.randint(0, 6, (33, 7)), rng.randint(0, 3, 33)  # rank 0 has three batches, rank 1 two
weights = rng.uniform(0.1, 3, 33).astype("float32")


def require_equal(name, build, fits=1, tolerance=1e-5, **options):
    results = []
    for wrap in (lambda optimizer: optimizer, DistributedOptimizer):
        keras.utils.set_random_seed(5)
        model = build(wrap)
        start = flat(model.get_weights())
        alone = not results
        for _ in range(fits):
            x, y, w = (tokens, labels, weights) if alone else shard(tokens, labels, weights)
            how = {"batch_size": 16} if alone else {"batch_size": 8, "callbacks": distribute()}
            model.fit(x, y, sample_weight=w, epochs=2, shuffle=False, verbose=0, **how, **options)
        results.append(flat(model.get_weights()))
    one, ours = results
    assert abs(one - start).max() > 0.02, (name, abs(one - start).max())
    assert abs(one - ours).max() < tolerance, (name, abs(one - ours).max(), abs(one - start).max())
    assert (everyones(ours) == ours).all(), name
