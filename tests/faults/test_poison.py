"""A worker whose values are not finite: the center and the other workers go on as if those had not been synchronized.

The center's rules keep out what is not finite, element by element; the synchronous rules hand it to everybody, in the
same step.
"""

import numpy as np
import pytest
from poison_values import DTYPES, HUGE, POISONS, ROUNDS, SHAPES, TURNS
from saved_arrays import load
from scripts_here import script_path

from platoon_base import ASGD, EASGD, CenterMomentum
from platoon_base.centers import host_kernels as kernels

pytestmark = [pytest.mark.base, pytest.mark.slow]

KERNELS = [
    pytest.param({}, id="c", marks=pytest.mark.skipif(not kernels.HAVE_FUSED, reason="no C extension")),
    pytest.param({"PLATOON_NO_KERNELS": "1"}, id="numpy"),
]
RULES = [EASGD(0.5), ASGD(), CenterMomentum(0.5, 0.25, 2.0)]  # its b is 1/2: two workers
POLICIES = ["raise", "skip", "restore"]


def draw(seed, dtype):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape), dtype) for shape in SHAPES.values()]


def start(dtype):
    arrays = draw(1, dtype)
    put(arrays, {HUGE: -0.9})
    return arrays


def put(arrays, poison):
    for (i, element), value in poison.items():
        arrays[i].reshape(-1)[element] = value * (np.finfo(arrays[i].dtype).max if (i, element) == HUGE else 1)


class ByHand:
    """Two workers and a center, after the equations; elements whose center would not be finite are left alone."""

    def __init__(self, rule, policy, values):
        self.rule, self.policy = rule, policy
        self.center = [a.copy() for a in values]
        self.x = [[a.copy() for a in values] for _ in range(2)]
        self.momentum, self.moved = ([np.zeros_like(a) for a in values] for _ in range(2))
        own = self.moved if isinstance(rule, CenterMomentum) else values
        self.own = [[a.copy() for a in own] for _ in range(2)]  # x_old of ASGD, s_x of CenterMomentum

    def sync(self, rank):
        """Return the first (parameter, element) that was left alone, or None."""
        refused = []
        rows = zip(self.x[rank], self.center, self.own[rank], self.momentum, self.moved)
        for i, arrays in enumerate(rows):
            with np.errstate(all="ignore"):
                after = self.after(*arrays)
            good = np.isfinite([after[1], *after[3:]]).all(axis=0)
            refused += [(i, int(element)) for element in np.flatnonzero(~good)]
            for array, new in zip(arrays, after):
                np.copyto(array, new, where=good)
        if refused and self.policy == "restore":
            self.x[rank] = [a.copy() for a in self.center]
            own = self.moved if isinstance(self.rule, CenterMomentum) else self.center
            self.own[rank] = [a.copy() for a in own]
        return min(refused, default=None)

    def after(self, x, c, own, m, s):
        number = x.dtype.type
        if isinstance(self.rule, ASGD):
            return (c + (x - own),) * 3 + (m, s)
        if isinstance(self.rule, EASGD):
            d = number(self.rule.alpha) * (x - c)
            return x - d, c + d, own, m, s
        b = number(self.rule.momentum**0.5)
        x = x + (s - own)
        d = number(self.rule.alpha) * (x - c)
        m = b * m + (number(1) - b) * d
        j = number(self.rule.gain) * m
        return x + (j - d), c + (j + d), s + j, m, s + j


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_the_rest_is_synchronized_as_if_the_poison_were_not_there(run_job, tmp_path, rule, policy, kernel):
    """Bit by bit, over several synchronizations of both workers: poisoned, poisoned still, and healed."""
    for dtype in DTYPES:
        named = {f"start {name}": array for name, array in zip(SHAPES, start(dtype))}
        for rank in range(2):
            named.update({f"move {rank} {name}": array for name, array in zip(SHAPES, draw(rank + 2, dtype))})
        np.savez(tmp_path / f"{dtype}.npz", **named)
    outcome = run_job(
        script_path("poison_train"), args=[repr(rule), policy, "numpy" if kernel else "c"], environment=kernel
    ).require_success()
    seen = [load(tmp_path / f"seen{rank}.npz") for rank in range(2)]

    expected_texts = []
    for number, (dtype, name, locked) in enumerate(ROUNDS):
        poison = POISONS[name]
        hand = ByHand(rule, policy, start(dtype))
        for turn, who in enumerate(TURNS):
            if turn < 2:
                for x, move in zip(hand.x[who], draw(who + 2, dtype)):
                    x += move
            if turn == 0:
                put(hand.x[0], poison)
            if turn == 3:
                put(hand.x[0], dict.fromkeys(poison, -0.8))
            refused = hand.sync(who)
            assert (refused is not None) == (turn == 0 or (turn == 2 and policy != "restore")), "the oracle is at fault"
            if refused:
                i, element = refused
                expected_texts.append(
                    f"rank 0, step {10 * number + 10}: element {element} of {list(SHAPES)[i]} is not finite"
                )
            where = f"{dtype}, {name}, locked: {locked}, turn {turn}"
            got = seen[who][f"{number} {turn}"]
            expected = np.concatenate([a.ravel() for a in hand.x[who] + hand.center])
            assert got.dtype == dtype, where
            np.testing.assert_array_equal(got, expected, err_msg=where)
            assert np.isfinite(got[len(got) // 2 :]).all(), f"{where}: the center"
            assert who == 0 or np.isfinite(got).all(), f"{where}: the other worker"

    assert seen[1]["told"].size == 0
    assert "WARNING" not in outcome.logs[1]
    if policy == "raise":
        texts = list(seen[0]["told"])
        assert all("on_nonfinite='restore'" in text for text in texts)
        assert "WARNING" not in outcome.logs[0]
    else:
        texts = [line for line in outcome.logs[0].splitlines() if "WARNING" in line]
        assert seen[0]["told"].size == 0
    assert len(texts) == len(expected_texts)
    for text, expected in zip(texts, expected_texts):
        assert expected in text, (text, expected)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_update_of_the_others_arrives_while_one_is_poisoned(run_job, policy, kernel):
    """All at once; what is added are whole numbers, so that nothing may be lost by rounding either."""
    run_job(
        script_path("poison_every_update_of_the_others_arrives"), workers=3, args=[policy], environment=kernel
    ).require_success()


@pytest.mark.parametrize("first", [True, False], ids=["creator", "second"])
def test_a_model_that_is_not_finite_to_begin_with_is_refused_by_name(run_job, first):
    """Whether it is the first or not; the other shares its own meanwhile, and a second try is none too many."""
    run_job(script_path("poison_a_model_that_is_not_finite_to_begin"), args=[str(first)]).require_success()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_copy_to_global_refuses_what_is_not_finite_by_name(run_job, rule):
    """Nothing of it is written, also not of the parameters before; the rule goes on from where it was."""
    run_job(script_path("poison_copy_to_global_refuses_what_is_not_finite"), args=[repr(rule)]).require_success()


def test_a_state_beside_the_center_stays_finite_too(run_job):
    """A rule of the user's own, which divides by what has accumulated: an infinity there would stop all for ever."""
    outcome = run_job(script_path("poison_a_state_beside_the_center_stays_finite_too")).require_success()
    assert outcome.reported == {"moved": 5}


# Synchronous rules.


@pytest.mark.parametrize("kernel", KERNELS)
def test_synchronous_rules_show_what_is_not_finite_to_all_in_the_same_step(run_job, tmp_path, kernel):
    """All workers see the same, and stop in the same step, as the docstring of the module says."""
    run_job(
        script_path("poison_synchronous_rules_show_what_is_not_finite"), workers=3, environment=kernel
    ).require_success()
    seen = [load(tmp_path / f"seen{rank}.npz") for rank in range(3)]
    assert len(seen[0]) == 4 * 3 * 3
    for name, array in seen[0].items():
        for other in seen[1:]:
            assert other[name].tobytes() == array.tobytes(), name
