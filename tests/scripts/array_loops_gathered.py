"""Loaders of all kinds, rows of all workers for metrics, what one worker prints and saves; mistakes."""

from job_preamble import ConfigurationError, EASGD, Path, np, raises, sys, worker
import jax
import jax.numpy as jnp
from platoon_base.array_loops import average, batches, common, gather_for_metrics, is_main, prepare, print, save, sync

MODE = sys.argv[2]
rows = np.arange(26 * 3).reshape(26, 3)


class Indexed:
    """Such as a dataset of grain: the worker reads its own batches only."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 7

    def __getitem__(self, i):
        if i >= 7:
            raise IndexError
        self.read.append(i)
        return {"x": rows[4 * i : 4 * i + 4], "y": jnp.asarray(rows[4 * i : 4 * i + 4, 0] > 30)}


class Streamed:
    def __iter__(self):
        return (batch for batch in Indexed())


class Shuffled:
    """Draws its order from NumPy's generator, whose seeds differ."""

    def __iter__(self):
        order = np.random.permutation(26)
        return (order[i : i + 4] for i in range(0, 26, 4))


w = np.ones(3)
w, indexed, streamed, shuffled = prepare(w, Indexed(), Streamed(), Shuffled(), mode=MODE)
for loader in (indexed, streamed):
    found, mine = [], 0
    for batch in loader:
        gathered = gather_for_metrics(
            {"x": batch["x"], "y": [batch["y"], batch["y"].astype(jnp.bfloat16), 7 + worker.global_rank]}
        )
        assert gathered["y"][0].tolist() == (gathered["x"][:, 0] > 30).tolist()
        assert gathered["y"][0].dtype == bool
        assert gathered["y"][2].tolist() == [7 + rank for rank in range(worker.global_size)]
        mine += len(batch["x"])
        found.append(gathered["x"])
    assert np.array_equal(np.concatenate(found), rows), found
    assert mine <= 26 * (0.6 if worker.global_size > 1 else 1)
assert len(indexed) == (4 if worker.global_size > 1 else 7)
assert len(indexed.read) <= (6 if worker.global_size > 1 else 7), "batches of others are not read"
for loader in (indexed, streamed):
    assert np.array_equal(gather_for_metrics(np.concatenate([batch["x"] for batch in loader])), rows), "of a pass"
for _ in range(2):
    got = np.concatenate([gather_for_metrics(row) for row in shuffled])
    assert sorted(got.tolist()) == list(range(26))
for loaders in ([batches(26, 4)] * 2, [batches(26, 4), batches(26, 4)]):
    orders = [np.concatenate([gather_for_metrics(row) for row in loader]) for loader in loaders]
    assert sorted(orders[0].tolist()) == sorted(orders[1].tolist()) == list(range(26))
    assert orders[0].tolist() != orders[1].tolist()
for count in (24, 25, 26, 28):
    loader = batches(count, 4)
    assert len(loader) == len(list(loader)), count
marks = gather_for_metrics(np.array([[2**60 + 1 + worker.global_rank]]))
assert marks.tolist() == [[2**60 + 1 + rank] for rank in range(worker.global_size)]

for row in batches(26, 4):
    w = w - 0.001 * average(rows[row].mean(0))
    w = sync(w)
w = common(w)
path = Path(sys.argv[1], "model.npz")
save({"w": w, "value": {"w": np.zeros(1)}, "layers": [jnp.ones(2, jnp.bfloat16)]}, path)
print("printed by", worker.global_rank)
worker.barrier()
with np.load(path) as saved:
    assert sorted(saved.files) == ["layers/0", "value/w", "w"]
    assert np.array_equal(saved["w"], w), "of all workers"
assert [each.name for each in path.parent.glob("model.npz*")] == ["model.npz"]
assert sum(worker.gather(is_main())) == 1


def refused(text, function, *objects, **settings):
    with raises(ConfigurationError, text):
        function(*objects, **settings)


refused("without arrays of floats", prepare, 3)
refused('pass "async" or "sync"', prepare, w, mode="both")
refused("averaged gradients do not use", prepare, w, mode="sync", strategy=EASGD())
refused("pass the number of rows", batches, 26, 0)
if worker.global_size > 1:
    generator = prepare(iter([]), mode=MODE)
    refused("read only once", list, generator)
    refused("equal settings", prepare, Streamed(), mode="async" if MODE == "sync" else "sync")
    if MODE == "sync":
        refused("0 or more", average, w, -1)
        other = w + worker.global_rank
        refused("pass the parameters to prepare", common, other)
    else:
        refused("no parameters of floats", sync, {"count": np.arange(3)})

    @jax.jit
    def step(w):
        found = sync(average({"w": w, "rate": 0.5}))
        assert isinstance(found["rate"], float), "a constant of the step"
        return found["w"]

    given = step(jnp.ones(3))
    prepare(np.ones(2), mode=MODE)
    step(given)
    refused("another prepare has ended", gather_for_metrics, w)
else:
    assert sync(w) is w
worker.close()
