from keras_preamble import *

Base = keras.utils.Sequence if KERAS_2 else keras.utils.PyDataset


class Batches(Base):
    def __init__(self, rng, at_once=False):
        super().__init__()
        self.rng, self.order = rng, np.arange(64)
        if at_once:
            self.on_epoch_end()

    def __len__(self):
        return 8

    def __getitem__(self, i):
        rows = self.order[8 * i : 8 * i + 8]
        return np.random.rand(8, 2) + rows[:, None], rows

    def on_epoch_end(self):
        self.rng.shuffle(self.order)


for rng in (np.random.default_rng(3), np.random):
    part = shard(Batches(rng))
    for epoch in range(3):
        rows = [row for i in range(len(part)) for row in part[i][1]]
        assert sorted(everyones(rows).ravel()) == list(range(64))
        part.on_epoch_end()


# Labels may be varied with the inputs, or there are none: rows are the same, what is made of them is not.
class Varied(Batches):
    def __getitem__(self, i):
        labels = super().__getitem__(i)[1] + np.random.default_rng().random()
        return labels if self.alone else (labels, labels)


Varied.on_epoch_end = lambda self: np.random.shuffle(self.order)
for Varied.alone in (False, True):
    part = shard(Varied(None))
    for epoch in range(3):
        batches = [part[i] if Varied.alone else part[i][1] for i in range(len(part))]
        assert sorted(everyones(np.floor(np.concatenate(batches))).ravel()) == list(range(64))
        part.on_epoch_end()
for at_once in (False, True):
    worker.barrier("next")
    wrong = 0.0
    try:
        part = shard(Batches(np.random.default_rng(), at_once))
        part.on_epoch_end()
        part[0]
    except PlatoonError as exc:
        when = "as it was created" if at_once else "after its on_epoch_end (call 1 of its hooks)"
        assert f"the Batches ({5 + at_once} of this script), {when} (its labels), differs" in str(exc), exc
        assert "the same rows in different orders" in str(exc), exc
        wrong = 1.0
    assert everyones([wrong]).sum() == 1, "only who comes later can know"
