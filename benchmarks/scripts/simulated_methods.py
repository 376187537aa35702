"""The methods of benchmarks/learning_simulation.py, as equations on tensors, and the settings that it tries.

x are a worker's parameters, x_old those after its previous synchronization, c the center, N the number of workers. All
other state begins with 0. A function is called when a worker arrives: it sets attributes of ``at`` anew, from those of
``at`` and the settings ``p``. Tensors have the shape (models, parameters), numbers that count (models, 1), and where
workers wait for one another x has that of all of them, (models, N, parameters).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from scripts.learning_methods import PLAIN


def easgd(at: Any, p: Any) -> None:
    """d := alpha (x - c); x := x - d; c := c + d (Zhang et al., 1412.6651, equations 5 and 6)."""
    d = p.alpha * (at.x - at.c)
    at.x, at.c = at.x - d, at.c + d


def averaged_easgd(at: Any, p: Any) -> None:
    """x := x + (factor - 1) (x - x_old); e := x - c; x := x - pull e; c := c + alpha e; x_old := x: EASGD whose workers
    are pulled harder than their center, and whose steps count more (this project's)."""
    x = at.x + (p.factor - 1) * (at.x - at.x_old)
    e = x - at.c
    at.x, at.c = x - p.pull * e, at.c + p.alpha * e
    at.x_old = at.x


def center_momentum(at: Any, p: Any) -> None:
    """x := x + (s - s_x); d := alpha (x - c); m := b m + (1 - b) d with b = mu^(1/N); j := gain m; x := x - d + j;
    c := c + d + j; s := s + j; s_x := s (this project's; springs as in EASGD)."""
    at.x = at.x + (at.s - at.s_x)
    d, b = p.alpha * (at.x - at.c), p.mu ** (1 / p.workers)
    at.m = b * at.m + (1 - b) * d
    j = p.gain * at.m
    at.x, at.c, at.s = at.x - d + j, at.c + d + j, at.s + j
    at.s_x = at.s


def center_momentum_left_behind(at: Any, p: Any) -> None:
    """As `center_momentum`, but x := x - d: the workers are not moved along."""
    d, b = p.alpha * (at.x - at.c), p.mu ** (1 / p.workers)
    at.m = b * at.m + (1 - b) * d
    at.x, at.c = at.x - d, at.c + d + p.gain * at.m


def diloco(at: Any, p: Any) -> None:
    """All wait; d := mean of x_i - c; m := mu m + d; c := c + lr (d + mu m); x_i := c (Douillard et al. 2311.08105)."""
    d = at.x.mean(1) - at.c
    at.m = p.mu * at.m + d
    at.c = at.c + p.lr * (d + p.mu * at.m)
    at.x = at.c[:, None].expand_as(at.x)


def asgd(at: Any, p: Any) -> None:
    """c := c + lr (x - x_old); x := c (Dean et al., NIPS 2012, with lr = 1; asynchronous averaging with lr = 1/N)."""
    at.c = at.c + p.lr * (at.x - at.x_old)
    at.x = at.x_old = at.c


def by_staleness(at: Any, p: Any) -> None:
    """c := c + lr (x - x_old) / tau; x := c; tau = arrivals since this worker's last (Zhang et al., 1511.05950)."""
    tau = (at.arrivals - at.seen).clamp(min=1)
    at.c = at.c + p.lr * (at.x - at.x_old) / tau
    at.x = at.x_old = at.c
    at.arrivals = at.seen = at.arrivals + 1


def delay_compensation(at: Any, p: Any) -> None:
    """g := x_old - x; v := 0.95 v + 0.05 g^2; c := c - lr (g + lambda g^2 / sqrt(v) (c - x_old)); x := c
    (Zheng et al., 1609.08326, DC-ASGD-a, with progress as the gradient)."""
    g = at.x_old - at.x
    at.v = 0.95 * at.v + 0.05 * g * g
    at.c = at.c - p.lr * (g + p.lam * g * g / (at.v + 1e-12).sqrt() * (at.c - at.x_old))
    at.x = at.x_old = at.c


def delayed_nesterov(at: Any, p: Any) -> None:
    """g := x_old - x; c := c - lr g / N; at each N-th arrival m := mu m + mean of the N g, c := c - lr mu m; x := c
    (Liu et al., 2401.09135, algorithm 3 with c = 0)."""
    g = at.x_old - at.x
    total, count = at.total + g, at.count + 1
    full = count >= p.workers
    at.m = torch.where(full, p.mu * at.m + total / p.workers, at.m)
    at.c = at.c - p.lr * g / p.workers - torch.where(full, p.lr * p.mu * at.m, 0)
    at.total, at.count = torch.where(full, 0, total), torch.where(full, 0, count)
    at.x = at.x_old = at.c


def momentum_at_each(at: Any, p: Any) -> None:
    """g := (x_old - x) / N; m := b m + g with b = mu^(1/N); c := c - lr (g + b m); x := c (whole deltas, the center's
    momentum at each arrival; this project's)."""
    g, b = (at.x_old - at.x) / p.workers, p.mu ** (1 / p.workers)
    at.m = b * at.m + g
    at.c = at.c - p.lr * (g + b * at.m)
    at.x = at.x_old = at.c


def rounds(at: Any, p: Any) -> None:
    """Add x_old - x to a round's total; the N-th closes it: d := total / N; m := mu m + d; c := c - lr (d + mu m);
    x := c. Who comes before gets c less the mean of the open round (Nguyen et al., 2106.06639, with momentum)."""
    total, count = at.total + (at.x_old - at.x), at.count + 1
    full, d = count >= p.workers, total / p.workers
    at.m = torch.where(full, p.mu * at.m + d, at.m)
    at.c = torch.where(full, at.c - p.lr * (d + p.mu * at.m), at.c)
    at.x = at.x_old = torch.where(full, at.c, at.c - total / count)
    at.total, at.count = torch.where(full, 0, total), torch.where(full, 0, count)


class Method(NamedTuple):
    """What happens on arrival (None: gradients are averaged in all steps), who waits, and the state, zeros at first.

    State has the shape of c, or a worker's own that of x; numbers in COUNTS are one for each model.
    """

    arrive: Callable[[Any, Any], None] | None
    waits: bool = False
    center: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


COUNTS = ("count", "arrivals", "seen")
METHODS = {
    PLAIN: Method(None, waits=True),
    "averaged gradients": Method(None, waits=True),
    "CenterMomentum": Method(center_momentum, center=("m", "s"), own=("s_x",)),
    "CenterMomentum, not moved along": Method(center_momentum_left_behind, center=("m",)),
    "EASGD": Method(easgd),
    "AveragedEASGD": Method(averaged_easgd, own=("x_old",)),
    "DiLoCo": Method(diloco, waits=True, center=("m",)),
    "parts of whole deltas": Method(asgd, own=("x_old",)),
    "rates by staleness": Method(by_staleness, center=("arrivals",), own=("x_old", "seen")),
    "delay compensation": Method(delay_compensation, center=("v",), own=("x_old",)),
    "Delayed Nesterov": Method(delayed_nesterov, center=("m", "total", "count"), own=("x_old",)),
    "momentum at each arrival": Method(momentum_at_each, center=("m",), own=("x_old",)),
    "rounds, nobody waits": Method(rounds, center=("m", "total", "count"), own=("x_old",)),
}


class Setting(NamedTuple):
    """A row of the table.

    Attributes
    ----------
    method : str
    workers : int
    values : dict
        The symbols of the method's equations.
    period : int
        Steps of a worker between two synchronizations.
    rate : float
        Adam's learning rate, as a multiple of plain training's best.
    start : int
        First steps in which workers that wait average their gradients, and others synchronize after each.
    random : bool
        Arrivals at random phases.
    slow : int
        How many times as long worker 0 takes for a step.
    moments : {"own", "mean", "pull", "same", "adopt"}
        What happens with the optimizers' moments M_i at an exchange: nothing; M_i := their mean (workers that wait:
        DES-LOC, 2505.22549); M_i := M_i - e and M := M + e with e = alpha (M_i - M), as EASGD's springs; the same
        with M_i := M_i - pull (M_i - M); or M := M + (M_i - M) / N and M_i := M.
    """

    method: str
    workers: int
    values: dict[str, float]
    period: int = 10
    rate: float = 1
    start: int = 0
    random: bool = False
    slow: int = 1
    moments: str = "own"

    @property
    def label(self) -> str:
        """The settings in a few words."""
        words = [f"{name} {value:.3g}" for name, value in self.values.items()]
        words += [f"every {self.period}"] if METHODS[self.method].arrive else []
        words += [f"rate x{self.rate:g}"] if self.rate != 1 else []
        words += [f"start {self.start}"] if self.start else []
        words += ["random arrivals"] * self.random + [f"one {self.slow} times as slow"] * (self.slow > 1)
        words += [f"moments {self.moments}"] * (self.moments != "own")
        return ", ".join(words)


def settings(n: int) -> list[Setting]:
    """Return the rows of docs/learning.md for n workers."""
    alpha, gain = 0.9 / n, 1.35 * n**0.5

    def rows(method: str, names: str, *values: tuple[float, ...], **options: Any) -> list[Setting]:
        return [Setting(method, n, dict(zip(names.split(), each)), **options) for each in values]

    def outer(method: str, period: int, *pairs: tuple[float, float], **options: Any) -> list[Setting]:
        return rows(method, "lr mu", *pairs, period=period, **options)

    default = rows("CenterMomentum", "alpha mu gain", (alpha, 0.9, gain))
    found = [default[0]._replace(**each) for each in ({}, {"random": True}, {"slow": 2}, {"period": 4})]
    found += [default[0]._replace(**each) for each in ({"period": 20}, {"start": 100})]
    found += rows("CenterMomentum", "alpha mu gain", (alpha, 0.9, 1.4 * gain))
    found += [default[0]._replace(rate=round(n**0.5, 2))]
    found += rows("CenterMomentum", "alpha mu gain", (alpha, 0.9**0.1, gain), period=1)
    for period, rate in ((10, 1), (10, round(n**0.5, 2)), (4, 1), (4, 2), (1, 4)):
        found += rows("EASGD", "alpha", (alpha,), period=period, rate=rate)
    found += [Setting("averaged gradients", n, {}, rate=rate) for rate in (1, 2)]
    for period in (4, 5, 10, 20):
        found += outer("DiLoCo", period, (0.7, 0.8), (0.7, 0.9))
    found += outer("DiLoCo", 10, (1, 0), rate=round(n**0.5, 2))
    for period in (10, 20):
        found += outer("DiLoCo", period, (0.7, 0.8), start=60)
    found += rows("CenterMomentum, not moved along", "alpha mu gain", *((alpha, 0.9, each) for each in (0.5, 1, 2.7)))
    parts = sorted({1 / n, 0.5})
    found += rows("parts of whole deltas", "lr", *((lr,) for lr in parts))
    for period in (1, 10):
        found += rows("rates by staleness", "lr", (1,), period=period)
        values = [(lr, lam) for lr in parts for lam in (0.04, 0.5, 2)]
        found += rows("delay compensation", "lr lam", *values, period=period)
    found += outer("Delayed Nesterov", 30, (0.5, 0.8)) + outer("Delayed Nesterov", 10, (0.7, 0.9))
    found += outer("momentum at each arrival", 10, (0.7, 0.9), (0.4, 0.9), (0.7, 0.7))
    for period in (4, 10):
        found += outer("rounds, nobody waits", period, (0.3, 0.8), (0.5, 0.7), (0.7, 0.5))
    return found


def easgd_settings(n: int) -> list[Setting]:
    """Return EASGD's periods, strengths and learning rates for n workers: what its own defaults were chosen from."""
    rates, strengths = (1, round(n**0.5, 2), n), (0.45, 0.9, 1.35)
    return [
        Setting("EASGD", n, {"alpha": strength / n}, period=period, rate=rate)
        for period in (1, 4, 10)
        for rate in rates
        for strength in strengths
    ]


def scaled_settings(n: int) -> list[Setting]:
    """Return learning rates that grow with n, exchanges of moments, and what goes well with them."""
    alpha, gain, root = 0.9 / n, 1.35 * n**0.5, round(n**0.5, 2)
    found = []
    for rate in sorted({1, root, round(1.5 * root, 2), 2 * root, n}):
        for part in (0.25, 0.5, 1):
            for moments in ("own", "pull"):
                values = {"alpha": alpha, "mu": 0.9, "gain": round(part * gain, 3)}
                found += [Setting("CenterMomentum", n, values, rate=rate, moments=moments)]
        for period in (4, 10):
            found += [Setting("EASGD", n, {"alpha": alpha}, period=period, rate=rate)]
        found += [Setting("EASGD", n, {"alpha": alpha}, rate=rate, moments="pull")]
        for lr, mu in ((1, 0), (0.7, 0.8)):
            for moments in ("own", "mean"):
                found += [Setting("DiLoCo", n, {"lr": lr, "mu": mu}, rate=rate, moments=moments)]
        found += [Setting("averaged gradients", n, {}, rate=rate)]
    return found


def shared_moments_settings(n: int) -> list[Setting]:
    """Return periods and gains for workers that exchange their moments without waiting."""
    root = n**0.5
    return [
        Setting(
            "CenterMomentum",
            n,
            {"alpha": 0.9 / n, "mu": 0.9 ** (period / 10), "gain": round(part * 1.35 * root, 3)},
            period=period,
            rate=round(factor * root, 2),
            moments=moments,
        )
        for moments in ("pull", "adopt")
        for period in (1, 2, 4, 10)
        for part in (0, 0.25, 0.5, 1)
        for factor in (1, 1.5)
    ]


def averaged_easgd_settings(n: int) -> list[Setting]:
    """Return pulls, periods and factors of AveragedEASGD; steps become longer by the factor, not by the rate."""
    found = [
        Setting(
            "AveragedEASGD",
            n,
            {"alpha": 0.9 / n, "pull": pull, "factor": round(times * n**0.5, 2)},
            period=period,
            moments=moments,
        )
        for moments in ("pull", "same")
        for period in (1, 2, 4)
        for pull in (0.35, 0.5, 0.65)
        for times in (1.5, 2, 2.5)
        if moments == "pull" or pull == 0.5
    ]
    usual = Setting("AveragedEASGD", n, {"alpha": 0.9 / n, "pull": 0.5, "factor": round(2 * n**0.5, 2)}, 1)
    usual = usual._replace(moments="pull")
    return [*found, usual._replace(slow=2), usual._replace(random=True), usual._replace(random=True, period=2)]


def slow_settings(n: int) -> list[Setting]:
    """Return AveragedEASGD with all workers as fast, and with one at a half and at a quarter of the speed."""
    values = {"alpha": 0.9 / n, "pull": 0.5, "factor": round(2 * n**0.5, 2)}
    return [Setting("AveragedEASGD", n, values, 1, moments="pull", slow=slow) for slow in (1, 2, 4)]


def outer_settings(n: int) -> list[Setting]:
    """Return periods and outer steps of DiLoCo, with the mean alone (LocalSGD) as the first of each."""
    pairs = (1, 0), (0.7, 0.8), (0.7, 0.9)
    return [Setting("DiLoCo", n, {"lr": lr, "mu": mu}, period) for period in (10, 50) for lr, mu in pairs]


TABLES = {
    "rules": settings,
    "easgd": easgd_settings,
    "scaled": scaled_settings,
    "moments": shared_moments_settings,
    "averaged": averaged_easgd_settings,
    "slow": slow_settings,
    "outer": outer_settings,
}
