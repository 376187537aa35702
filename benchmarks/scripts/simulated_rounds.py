"""The methods of benchmarks/hosts_overlap_simulation.py: what hosts with one worker each do after each of its steps.

x are the workers' parameters, of shape (seeds, hosts, parameters). Each method changes them in place. Outer steps and
elastic averaging are those of the rules of this package, which are element-wise: all seeds make them in one call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from platoon_base.rules import AveragedEASGD, DiLoCo, LocalSGD

Array = np.ndarray
RULES = {"LocalSGD": LocalSGD(), "DiLoCo": DiLoCo()}
SLOW = {"mean": (0.0, 1.0, 1.0), "NoLoCo": (0.5, 0.7, 0.7), "NoLoCo(0.8, 0.7, 1)": (0.8, 0.7, 1.0)}
ELASTIC = {"AveragedEASGD": AveragedEASGD(), "AveragedEASGD, scale=None": AveragedEASGD(scale=None)}


class Method(NamedTuple):
    """A row of the table.

    Attributes
    ----------
    rule : str
        One of RULES, PAIRS or ELASTIC.
    every : int
        Steps from one exchange to the next, H.
    delay : int
        Steps from the sending of a contribution to the merging of the result, tau.
    keep : float or None
        The part of itself that a worker keeps as it merges, a; None if it keeps what it learned since it sent.
    fragments : int
        Parts of the parameters, which are exchanged in turn, P.
    group : int
        Hosts that meet, where not all do: 2 for pairs.
    """

    rule: str
    every: int
    delay: int = 0
    keep: float | None = 0.0
    fragments: int = 1
    group: int = 0

    @property
    def label(self) -> str:
        """The settings in a few words."""
        words = [f"{self.fragments} fragments"] if self.fragments > 1 else []
        words += [f"tau {self.delay}"] if self.delay else []
        words += ["pairs"] if self.group == 2 else []
        if self.delay and self.rule in RULES:
            words += ["keeps progress" if self.keep is None else f"a {self.keep:g}"]
        return ", ".join(words) or "at once"


class Sent(NamedTuple):
    """What is under way: the step of sending, the mean progress, the length of the round, the workers as they sent."""

    step: int
    progress: Array
    part: float
    x: Array


class Rounds:
    """Rounds of an outer-step rule, whole or in fragments, at once or overlapped with training.

    A fragment is sent each H steps, fragment p of P from step p H / P on. With a delay of tau steps::

        d := 1/N sum_i (x_i - c)              at step t
        c := c + step(d)                      at step t + tau: the rule's outer step
        x_i := a x_i + (1 - a) c              streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512, algorithm 2)
        x_i := c + (x_i - x_i at step t)      or, with keep=None, exactly what was learned meanwhile is kept
    """

    def __init__(self, method: Method, x: Array, seeds: list[int]) -> None:
        self.method, self.x, self.rule = method, x, RULES[method.rule]
        self.center = x[:, 0].copy()
        self.momentum = [np.zeros_like(self.center) for _ in self.rule.center_state]
        n, count = x.shape[-1], method.fragments
        self.slices = [slice(n * p // count, n * (p + 1) // count) for p in range(count)]
        self.offsets = [method.every * p // count for p in range(count)]
        self.last = [0] * count
        self.under_way: list[Sent | None] = [None] * count

    def after(self, step: int) -> None:
        """Merge the fragments whose results come after this step, and send those that are due."""
        for p, offset in enumerate(self.offsets):
            sent = self.under_way[p]
            if sent is not None and step == sent.step + self.method.delay:
                self.merge(p, sent)
            if (step - offset) % self.method.every == 0:
                self.send(p, step)

    def finish(self, step: int) -> None:
        """Wait for the results under way, and make a last round of all that was learned since."""
        for p, sent in enumerate(self.under_way):
            if sent is not None:
                self.merge(p, sent)
            if self.last[p] < step:
                self.send(p, step)
                if self.under_way[p] is not None:
                    self.merge(p, self.under_way[p])

    def send(self, p: int, step: int) -> None:
        """Take the contributions to a round of fragment p; make the round if there is no delay."""
        x = self.x[:, :, self.slices[p]]
        progress = x.mean(1) - self.center[:, self.slices[p]]
        sent = Sent(step, progress, (step - self.last[p]) / self.method.every, x.copy())
        self.last[p] = step
        self.under_way[p] = sent
        if not self.method.delay:
            self.merge(p, sent)

    def merge(self, p: int, sent: Sent) -> None:
        """Make the outer step of fragment p, and let the workers take its result."""
        place = self.slices[p]
        center = self.center[:, place].reshape(-1)
        states = [state[:, place].reshape(-1) for state in self.momentum]
        self.rule.step(sent.progress.reshape(-1), center, tuple(states), sent.part)
        self.center[:, place] = center.reshape(len(self.x), -1)
        for state, new in zip(self.momentum, states):
            state[:, place] = new.reshape(len(self.x), -1)
        x, c = self.x[:, :, place], self.center[:, None, place]
        if self.method.keep is None:
            x += c - sent.x
        else:
            x += np.float32(1 - self.method.keep) * (c - x)
        self.under_way[p] = None

    def models(self) -> Array:
        """Return what is validated, of shape (seeds, models, parameters): the center."""
        return self.center[:, None]


class Groups:
    """Random groups of hosts, pairs as a rule, others for each seed and round, without a center (NoLoCo).

    Each H steps, with the mean over the hosts of a group, and slow weights c_i of each host::

        m_i := alpha m_i + beta mean(x - c) + gamma (mean(c) - c_i)
        c_i := c_i + m_i
        x_i := c_i

    Equation and values, alpha = 0.5 and beta = gamma = 0.7, are those of the program of the authors of arXiv
    2506.10911. With 0, 1 and 1 the hosts of a group go on from the mean of their parameters.
    """

    def __init__(self, method: Method, x: Array, seeds: list[int]) -> None:
        self.method, self.x, self.size = method, x, method.group or x.shape[1]
        self.alpha, self.beta, self.gamma = map(np.float32, SLOW[method.rule])
        self.slow, self.momentum = x.copy(), np.zeros_like(x)
        self.random = [np.random.default_rng([seed, x.shape[1]]) for seed in seeds]

    def after(self, step: int) -> None:
        """Let all groups meet if it is time."""
        if step % self.method.every:
            return
        for x, slow, momentum, random in zip(self.x, self.slow, self.momentum, self.random):
            for group in random.permutation(len(x)).reshape(-1, self.size):
                progress = (x[group] - slow[group]).mean(0)
                pulled = slow[group].mean(0) - slow[group]
                momentum[group] = self.alpha * momentum[group] + self.beta * progress + self.gamma * pulled
                slow[group] += momentum[group]
        self.x[...] = self.slow

    def finish(self, step: int) -> None:
        """Wait for nothing."""

    def models(self) -> Array:
        """Return the mean of the hosts, and each host."""
        return np.concatenate([self.slow.mean(1, keepdims=True), self.slow], axis=1)


class Elastic:
    """`AveragedEASGD` on each host at each step; each H steps the hosts exchange their centers.

    tau steps later each host adds to its center, to its worker and to what the worker remembers the difference between
    the mean of the copies and its own copy. Moments stay on their host. The mean of the averages is validated.
    """

    def __init__(self, method: Method, x: Array, seeds: list[int]) -> None:
        self.method, self.x = method, x
        self.rule = ELASTIC[method.rule].resolved(2).in_job(max(2, x.shape[1]))  # rules reckon with two at least
        self.center, self.average, self.x_old = x.copy(), x.copy(), x.copy()
        self.moments: list[Array] = []
        self.shared: list[Array] = []
        self.copies: tuple[int, Array] | None = None

    def share_moments(self, moments: list[Array]) -> None:
        """Give the optimizers' moments, arrays like x, which are shared with the host's center too."""
        self.moments, self.shared = moments, [np.zeros_like(each) for each in moments]

    def after(self, step: int) -> None:
        """Synchronize each worker with its host's center; copy the centers, and let copies come in."""
        rule, moments = self.rule.at_count(step), self.rule.of_moments()
        for x, c, x_old, average in zip(self.x, self.center, self.x_old, self.average):
            rule.sync(x.reshape(-1), c.reshape(-1), (x_old.reshape(-1),), (average.reshape(-1),))
        for own, shared in zip(self.moments, self.shared):
            for one, other in zip(own, shared):
                moments.sync(one.reshape(-1), other.reshape(-1))
        if self.copies is not None and step == self.copies[0] + self.method.delay:
            self.correct()
        if step % self.method.every == 0:
            self.copies = step, self.center.copy()

    def correct(self) -> None:
        """Move each host by the difference between the mean of the copies and its own."""
        if self.copies is not None:
            moved = self.copies[1].mean(1, keepdims=True) - self.copies[1]
            for values in (self.center, self.x, self.x_old):
                values += moved
        self.copies = None

    def finish(self, step: int) -> None:
        """Wait for nothing."""

    def models(self) -> Array:
        """Return the mean of the hosts' averages of their centers."""
        return self.average.mean(1, keepdims=True)


def hosts_of(method: Method, x: Array, seeds: list[int]) -> Rounds | Groups | Elastic:
    """Return what runs a method on the workers with parameters x."""
    kind = Rounds if method.rule in RULES else Groups if method.rule in SLOW else Elastic
    return kind(method, x, seeds)
