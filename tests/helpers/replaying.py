"""What the workers of a job do to their center, one after the other, in NumPy."""

import numpy as np

from platoon_base.rules.center import average_of, local_sources

__all__ = ["Replay", "draw", "require_validated", "take_turns"]


def draw(seed, shapes=((3, 5), (100_003,), (7,), (256, 300)), dtype="float32"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


class Replay:
    """The center and all workers in NumPy; they synchronize one after the other."""

    def __init__(self, rule, starts, size):
        self.rule, self.size = rule, size
        self.center = [a.copy() for a in starts]
        self.average, self.counts = average_of(rule), [0] * size  # It counts how often each worker synchronizes.
        begin = [np.copy if i == self.average else np.zeros_like for i in range(len(rule.center_state))]
        self.states = [[make(a) for a in starts] for make in begin]
        self.locals, self.own = [None] * size, [None] * size
        for turn in range(size):
            self.take_over(turn)

    @property
    def validated(self):
        """The center, or its average if the rule has one."""
        return self.center if self.average is None else self.states[self.average]

    def take_over(self, turn):
        """A worker goes on with the center's values."""
        self.locals[turn] = [c.copy() for c in self.center]
        starts = [self.center if source is None else self.states[source] for source in local_sources(self.rule)]
        self.own[turn] = [[a.copy() for a in start] for start in starts]

    def overwrite(self, turn, values):
        """A worker puts values into the center; momentum, which no worker follows, ends where they are others."""
        followed = [*local_sources(self.rule), self.average]
        if self.average is not None:
            self.states[self.average] = [value.copy() for value in values]
        for i, state in enumerate(self.states):
            for m, c, value in zip(state, self.center, values):
                if i not in followed:
                    m[c != value] = 0
        self.center = [value.copy() for value in values]
        self.take_over(turn)

    def sync(self, turn, progress, among=None):
        """A worker makes some progress, and synchronizes."""
        self.counts[turn] += 1
        rule = self.rule.resolved(max(2, among or self.size))  # as many as rules reckon with at least
        rule = rule.at_count(self.counts[turn])
        for i, add in enumerate(progress):
            x = self.locals[turn][i]
            x += add
            own, states = ([state[i] for state in those] for those in (self.own[turn], self.states))
            rule.sync(x, self.center[i], tuple(own), tuple(states))


def take_turns(worker, pairs, advance, steps, locked=lambda step: True):
    """Synchronize in turns, and require of each pair of a replay and its variables the same values, bit by bit."""
    for step in range(steps):
        for turn in range(worker.global_size):
            mine = turn == worker.global_rank
            for number, (replay, variables) in enumerate(pairs):
                shapes, dtype = [c.shape for c in replay.center], replay.center[0].dtype
                progress = draw(100 * step + 10 * number + turn, shapes, dtype)
                replay.sync(turn, progress)
                if mine:
                    advance(variables, progress)
            if mine:
                worker.sync_params(locked(step))
            for replay, variables in pairs if mine else ():
                for variable, x in zip(variables, replay.locals[turn]):
                    assert np.array_equal(variable.get_value(), x), (step, turn)
            worker.barrier()


def require_validated(pairs):
    """Require that variables have what is validated of the center of their replay."""
    for replay, variables in pairs:
        for variable, c in zip(variables, replay.validated):
            assert np.allclose(variable.get_value(), c, rtol=1e-6), "center"
