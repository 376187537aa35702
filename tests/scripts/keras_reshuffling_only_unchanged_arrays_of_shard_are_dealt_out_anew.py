"""Other arrays would no longer go with their rows; where one stands beside those of shard, the leader says so."""

from keras_preamble import *
from keras_reshuffling_marks import *
from platoon_base.system.warn import said


def warned(*data, **options):
    said.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = rows_of_fit(*data, **options)
    assert fixed(seen), seen
    return [str(w.message) for w in caught if "keeps its rows" in str(w.message)]


mine, labels = shard(x, y)
told = warned(mine * 1, labels)
assert [text for text in told if "is not of shard" in text] == told and len(told) == (rank == 0), told
told = warned(mine, labels, sample_weight=np.full(len(mine), 1 + 1e-5, "float32"))
assert len(told) == (rank == 0) and all("is not of shard" in text for text in told), told
assert warned(mine * 1, labels * 1) == []
other = shard(x, y)
for array in other:
    array *= 1 if rank else 1.0001  # on one worker alone
told = warned(*other)
assert len(told) == (rank == 0) and all("was changed after shard" in text for text in told), told
x, y = np.eye(ROWS, dtype="float32"), np.arange(1, ROWS + 1, dtype="float32")[:, None]
steps = {} if KERAS_2 else {"steps_per_epoch": 2, "epochs": 1}
if steps:
    rows = sum(rows_of_fit(*shard(x, y), **steps)[0], [])
    assert set(rows) <= set(range(rank, ROWS, size)) and len(rows) == 2 * BATCH, rows
