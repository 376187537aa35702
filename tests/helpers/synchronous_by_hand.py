"""The synchronous rules written out over all workers: what each of them should have after each step."""

import numpy as np
from saved_arrays import load

__all__ = ["FORMS", "draw", "require_by_hand"]

FORMS = ("easgd", "downpour", "downpour mean", "sum", "average")
DTYPES = ("f4", "f8", "f4", "f4")


def draw(seed, shapes):
    """Return arrays of up to four shapes, of dtypes that differ."""
    rng = np.random.RandomState(seed)
    return [np.asarray(rng.randn(*shape), dtype) for shape, dtype in zip(shapes, DTYPES)]


def by_hand(form, size, steps, shapes):
    """Yield x of all workers, c, and u of all workers after each step, in float64."""

    def wide(seeds):
        return [[a.astype("f8") for a in draw(seed, shapes)] for seed in seeds]

    x, (c,), u = wide(range(size)), wide([99]), wide(range(20, 20 + size))
    n = range(len(c))
    for step in range(steps):
        moves = wide(1000 * rank + step for rank in range(size))
        x = [[a + m for a, m in zip(*pair)] for pair in zip(x, moves)]
        u = [[a + m for a, m in zip(*pair)] for pair in zip(u, moves)]
        if form == "easgd":
            alpha = 0.2 + 0.01 * step
            d = [[alpha * (xi[i] - c[i]) for i in n] for xi in x]
            x = [[xi[i] - di[i] for i in n] for xi, di in zip(x, d)]
            c = [c[i] + sum(di[i] for di in d) for i in n]
        else:
            total = [sum(ui[i] for ui in u) / (size if form in ("average", "downpour mean") else 1) for i in n]
            u = [total] * size
            if form.startswith("downpour"):
                c = [c[i] + total[i] for i in n]
                x, u = [c] * size, [[0 * t for t in total]] * size
        yield x, c, u


def require_by_hand(folder, size, steps, shapes):
    """Compare what each worker has saved of each step, and require the same bits where all have the same values."""
    seen = [load(folder / f"seen{rank}.npz") for rank in range(size)]
    for form in FORMS:
        for step, (x, c, u) in enumerate(by_hand(form, size, steps, shapes)):
            for rank in range(size):
                centers = {} if form in ("sum", "average") else {"c": c}
                for name, expected in {"x": x[rank], "u": u[rank], **centers}.items():
                    for i, value in enumerate(expected):
                        what = f"{form} {step} {name} {i}"
                        got, scale = seen[rank][what], max(1, abs(value).max(initial=0))
                        assert got.shape == shapes[i]
                        np.testing.assert_allclose(got / scale, value / scale, atol=1e-5, err_msg=what)
                        if name == "c" or (name == "u" and form != "easgd"):
                            assert got.tobytes() == seen[0][what].tobytes()
