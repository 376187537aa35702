"""GoSGD as the paper has it, with lists of messages, and what the tests of jobs compare with it."""

import numpy as np
from learned_progress import progress

from platoon_base.rules import GoSGD

RULE, SHAPES = GoSGD(probability=0.5, seed=5), [(3, 4), (5,)]


class Simulation:
    """The algorithm of the paper, with joins and ends."""

    def __init__(self, workers, start=None):
        self.x, self.w, self.mail, self.random = {}, {}, {}, {}
        for rank in range(workers):
            self.x[rank] = [np.ones(shape) for shape in SHAPES] if start is None else [a.copy() for a in start]
            self.begin(rank, 1 / workers)

    def begin(self, rank, weight):
        self.w[rank], self.mail[rank] = weight, []
        self.random[rank] = np.random.default_rng((RULE.seed, rank))

    def join(self, rank):
        """Take half of the weight of the heaviest, what has come for that one included."""
        total = {each: self.w[each] + sum(w for _, w in self.mail[each]) for each in self.w}
        donor = max(total, key=total.get)
        assert sum(weight > 0.999 * total[donor] for weight in total.values()) == 1, "else any of them gives it"
        self.x[rank] = self.mean([donor])
        self.w[donor] /= 2
        self.mail[donor] = [(x, w / 2) for x, w in self.mail[donor]]
        self.begin(rank, total[donor] / 2)

    def die(self, rank):
        for state in (self.x, self.w, self.mail):
            del state[rank]

    def leave(self, rank):
        last, weight = self.mean([rank]), self.w[rank] + sum(w for _, w in self.mail[rank])
        self.die(rank)
        self.mail[min(self.w)].append((last, weight))

    def mean(self, ranks=None):
        """Return the mean by weight of what these workers have, and of what has come for them."""
        ranks = self.w if ranks is None else ranks
        models = [each for rank in ranks for each in ((self.x[rank], self.w[rank]), *self.mail[rank])]
        total = sum(w for _, w in models)
        return [sum(w * x[i] for x, w in models) / total for i in range(len(SHAPES))]

    def synchronize(self, turn, rank):
        x = [a + progress(rank, turn, a.shape, "float64") for a in self.x[rank]]
        for theirs, w in self.mail[rank]:
            total = self.w[rank] + w
            x = [(self.w[rank] * a + w * b) / total for a, b in zip(x, theirs)]
            self.w[rank] = total
        self.x[rank], self.mail[rank] = x, []
        if self.random[rank].random() < RULE.probability:
            others = sorted(set(self.w) - {rank})
            to = others[int(self.random[rank].integers(len(others)))]
            self.w[rank] /= 2
            self.mail[to].append((x, self.w[rank]))

    def take_turns(self, found, turns):
        """Synchronize, and require the values that ``found``, by rank, holds of each turn."""
        for turn, rank in turns:
            self.synchronize(turn, rank)
            for name, arrays in (("x", self.x[rank]), ("c", self.mean())):
                for i, want in enumerate(arrays):
                    got = found[rank][f"{turn} {name} {i}"]
                    text = f"turn {turn} of rank {rank}: {name} {i}"
                    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12, err_msg=text)


def some_turns(ranks, first, count):
    return [(first + i, int(rank)) for i, rank in enumerate(np.random.default_rng(first).choice(ranks, count))]


def load(folder, *ranks, name=""):
    return {rank: np.load(folder / f"{name}{rank}.npz") for rank in ranks}
