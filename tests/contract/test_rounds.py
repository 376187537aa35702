"""The center's part of rounds: no interleaving mixes them, and a death at any instruction leaves a sound center."""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from comparing import require_close
from interrupting import at_instruction
from rule_table import OUTER

from platoon_base.centers import host, host_kernels, host_rounds
from platoon_base.centers.base import NonFiniteElement
from platoon_base.centers.host import STRIPE_BYTES, HostCenters
from platoon_base.centers.host_kernels import HAVE_FUSED, STEP_BLOCK, RoundKernels, undo_bytes
from platoon_base.errors import ConfigurationError, LayoutMismatchError
from platoon_base.job.files import segment_prefix
from platoon_base.layout import Layout
from platoon_base.rules import EASGD, Adopt, DiLoCo, LocalSGD
from platoon_base.shm.segments import Segment

pytestmark = pytest.mark.base

SHAPES = [(3, 5), (STRIPE_BYTES // 4 + 17,), (), (700_000,)]  # three stripes


needs_fused = pytest.mark.skipif(not HAVE_FUSED, reason="needs the C extension: a compiler at installation")


@pytest.fixture(autouse=True, params=[pytest.param("fused", marks=needs_fused), "numpy"])
def form(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(host_kernels, "find_fused", lambda *args: None)
    return request.param


def model(value, shapes=SHAPES, dtype="float32"):
    return [np.full(shape, value, dtype) for shape in shapes]


@pytest.fixture
def open_centers():
    """Make a center of given values, and handles of it for so many workers that begin from them."""
    name, opened = f"{segment_prefix()}test{os.getpid()}-rounds", []

    def open_them(rule, values, workers):
        centers = HostCenters(name, workers=3)
        layout = Layout.of(values)
        for rank in range(workers):
            opened.append((centers.attach if rank else centers.create)(layout, rule, rank))
            if rank:
                opened[-1].read([np.empty_like(v) for v in values], True, 10, begin=True)
            else:
                opened[-1].fill(values, [])
        return opened

    yield open_them
    for center in opened:
        center.close()
    Segment.unlink(name)


def values_of(center, like):
    out = [np.empty_like(v) for v in like]
    center.read(out, True, 10)
    return out


def plus(progress, arrays):
    return [np.asarray(a + a.dtype.type(progress)) for a in arrays]


def require_all(arrays, value):
    for array in arrays:
        np.testing.assert_allclose(array, value, rtol=1e-6)


def test_a_round_of_three(open_centers):
    rule = DiLoCo(0.5, 0.5)
    centers = open_centers(rule, model(10), 3)
    c, m = 10.0, 0.0
    for number in (1, 2, 5):
        learned = [model(c + d) for d in (1, 2, 6)]
        for center, x in zip(centers, learned):
            assert center.contribute(x, 1.0, 10) is None
        require_all(values_of(centers[0], learned[0]), c)
        for center, x in reversed(list(zip(centers, learned))):
            assert center.take_over(rule, x, number, 10) is None
        m = 0.5 * m + 3
        c += 0.5 * (3 + 0.5 * m)
        for x in learned:
            require_all(x, c)


def test_the_part_of_a_round_is_the_mean_of_the_workers_parts(open_centers):
    rule = DiLoCo(1, 0.25)
    one, two = open_centers(rule, model(0), 2)
    for number, parts in ((1, (1, 1)), (2, (0.25, 0.75))):
        x = plus(1, values_of(one, model(0)))
        for center, part in zip((one, two), parts):
            center.contribute(x, part, 10)
        one.take_over(rule, x, number, 10)
        two.take_over(rule, [a.copy() for a in x], number, 10)
    # m: 1, then 0.25 ** 0.5 + 1; c: 1 + 0.25, then + 1 + 0.5 * 0.25 * 1.5
    require_all(x, 1.25 + 1 + 0.125 * 1.5)


def test_no_order_of_the_steps_of_three_workers_mixes_rounds(open_centers):
    """Worker 0 may be two rounds' steps ahead of the others wherever the meeting lets it: all orders, one stripe."""
    shapes, rule = [(7,)], LocalSGD()
    centers = open_centers(rule, model(0, shapes), 3)
    number = itertools.count(1)
    for order in set(itertools.permutations([0, 1, 1, 2, 2])):
        first, second = next(number), next(number)
        start = float(values_of(centers[0], model(0, shapes))[0][0])
        x = [model(start + d, shapes) for d in (3, 6, 9)]
        for center, values in zip(centers, x):
            center.contribute(values, 1.0, 10)
        # All have met. Each takes over and contributes to the next round, the three of them in any order.
        centers[0].take_over(rule, x[0], first, 10)
        seen = {0: 1}
        for rank in order:
            if seen.get(rank, 0) == 0:
                centers[rank].take_over(rule, x[rank], first, 10)
                require_all(x[rank], start + 6)
            else:
                for values in x[rank]:
                    values += 30 * (rank + 1)
                centers[rank].contribute(x[rank], 1.0, 10)
            seen[rank] = seen.get(rank, 0) + 1
        for center, values in zip(centers, x):
            center.take_over(rule, values, second, 10)
            require_all(values, start + 6 + 60)


def test_who_began_elsewhere_adds_nothing_and_goes_on_with_the_others(open_centers):
    rule = LocalSGD()
    one, two, late = open_centers(rule, model(0), 3)
    x, y, z = model(2), model(4), model(50)
    one.contribute(x, 1.0, 10)
    two.contribute(y, 1.0, 10)
    one.take_over(rule, x, 1, 10)
    two.take_over(rule, y, 1, 10)
    assert late.contribute(z, 1.0, 10) is None  # began from 0, and the center is at 3
    one.contribute(plus(1, x), 1.0, 10)
    for center, values in ((late, z), (one, x)):
        center.take_over(rule, values, 2, 10)
        require_all(values, 4)
    late.contribute(plus(2, z), 1.0, 10)
    one.contribute(x, 1.0, 10)
    late.take_over(rule, z, 3, 10)
    require_all(z, 5)


def test_a_second_contribution_to_a_round_does_not_count(open_centers):
    """A worker whose meeting has timed out tries again."""
    rule = LocalSGD()
    one, two = open_centers(rule, model(0), 2)
    one.contribute(model(1), 1.0, 10)
    one.contribute(model(100), 1.0, 10)
    two.contribute(model(3), 1.0, 10)
    x = model(100)
    one.take_over(rule, x, 1, 10)
    require_all(x, 2)


def test_who_took_the_center_over_by_a_copy_goes_on_from_there(open_centers):
    rule = LocalSGD()
    one, two = open_centers(rule, model(0), 2)
    one.contribute(model(1), 1.0, 10)
    one.take_over(rule, model(1), 1, 10)
    x = model(0)
    two.read(x, True, 10, begin=True)
    two.contribute(plus(4, x), 1.0, 10)
    two.take_over(rule, x, 2, 10)
    require_all(x, 5)


def test_progress_from_values_that_were_overwritten_does_not_count(open_centers):
    rule = LocalSGD()
    one, two = open_centers(rule, model(0), 2)
    one.contribute(model(1), 1.0, 10)
    two.write(model(50), True, 10)
    two.contribute(model(52), 1.0, 10)
    x, y = model(1), model(52)
    one.take_over(rule, x, 1, 10)
    two.take_over(rule, y, 1, 10)
    require_all([*x, *y], 52)


def test_outer_momentum_ends_where_other_values_are_put_into_the_center(open_centers):
    rule = DiLoCo(1, 0.5)
    one, two = open_centers(rule, model(0), 2)
    x = model(0)
    one.contribute(model(4), 1.0, 10)
    one.take_over(rule, x, 1, 10)
    require_all(x, 6)
    others = values_of(two, x)
    others[3][600_000] = 8
    for center in (one, two):  # the second time they are there already
        center.write(others, True, 10)
    two.contribute(plus(2, others), 1.0, 10)
    two.take_over(rule, x, 2, 10)
    assert x[3][600_000] == 8 + (2 + 0.5 * 2)
    x[3][600_000] = 10
    require_all(x, 6 + (2 + 0.5 * (0.5 * 4 + 2)))


def test_the_same_values_written_by_all_take_no_progress_away(open_centers):
    """As workers do whose callbacks have put the same weights into all models."""
    rule = LocalSGD()
    one, two = open_centers(rule, model(0), 2)
    one.write(model(50), True, 10)
    one.contribute(model(54), 1.0, 10)
    two.write(model(50), True, 10)
    two.contribute(model(52), 1.0, 10)
    x = model(0)
    one.take_over(rule, x, 1, 10)
    require_all(x, 53)


def test_a_worker_alone_hands_over_to_rounds(open_centers):
    rule = LocalSGD()
    one, late = open_centers(rule, model(0), 2)
    x = model(7)
    one.sync(Adopt(rule), x, True, 10)
    late.contribute(model(1), 1.0, 10)  # began from what is gone
    one.contribute(plus(1, x), 1.0, 10)
    one.take_over(rule, x, 1, 10)
    require_all(x, 8)


def test_what_is_not_finite_contributes_nothing_and_is_told(open_centers):
    rule = DiLoCo()
    one, two = open_centers(rule, model(0), 2)
    x = model(1)
    x[3][600_000] = np.nan
    x[1][5] = np.inf
    assert one.contribute(x, 1.0, 10) == NonFiniteElement(parameter=1, element=5)
    assert two.contribute(model(1), 1.0, 10) is None
    y = model(1)
    assert one.take_over(rule, x, 1, 10) is None
    assert two.take_over(rule, y, 1, 10) is None
    c = 0.7 * 1.8
    bad = [(1, 5), (3, 600_000)]
    for parameter, element in bad:
        assert x[parameter][element] == y[parameter][element] == pytest.approx(c / 2)  # its half of the mean is 0
        x[parameter][element] = c
    require_all(x, c)


def test_a_step_that_would_overflow_is_left_out_and_told(open_centers):
    rule, huge = DiLoCo(1, 0.9), float(np.finfo("float32").max)
    (one,) = open_centers(rule, model(0), 1)
    x = model(0)
    x[3][9] = 0.9 * huge
    assert one.contribute(x, 1.0, 10) is None
    assert one.take_over(rule, x, 1, 10) == NonFiniteElement(parameter=3, element=9)
    require_all(x, 0)
    one.contribute(model(1), 1.0, 10)
    assert one.take_over(rule, x, 2, 10) is None
    require_all(x, 1.9)


class Died(BaseException):
    """What ends a worker in the midst of something."""


def die():
    raise Died


def deaths(do):
    """Let a worker die after one more instruction each time, until it comes to the end; it never lets go itself."""
    for instruction in itertools.count(1, 7):
        try:
            at_instruction(instruction, do, die)
        except Died:
            yield instruction
        else:
            return


def test_a_death_while_it_contributes_leaves_its_own_progress_out_and_no_more(open_centers):
    rule, shapes = DiLoCo(0.5, 0.5), [(STEP_BLOCK + 5,), (3,)]
    one, two = open_centers(rule, model(0, shapes), 2)
    x, number = model(0, shapes), 0
    died = deaths(lambda: two.contribute(plus(1, y), 1.0, 10))
    while True:
        start = values_of(one, x)
        y = [a.copy() for a in start]
        if next(died, None) is None:
            break
        m = [state.copy() for state in one.snapshot()[1][0]]
        one.contribute(plus(1, start), 1.0, 10)
        number += 1
        one.take_over(rule, x, number, 10)
        # Of two contributions or one, on each stripe as a whole: the two means are the same.
        for i, (a, s) in enumerate(zip(x, start)):
            rule.step(np.full_like(s, 1), s, (m[i].copy(),), 1.0)
            np.testing.assert_array_equal(a, s, err_msg=str(number))
        two.read(y, True, 10, begin=True)
    assert number > 20


def test_a_death_in_the_midst_of_the_step_is_made_good_by_the_next(open_centers):
    """The step that was begun is finished, block by block, and made once on each element."""
    rule, shapes = DiLoCo(0.5, 0.5), [(2 * STEP_BLOCK + 5,), (3,)]
    one, two = open_centers(rule, model(0, shapes), 2)
    x, number = model(0, shapes), 0
    died = deaths(lambda: two.take_over(rule, y, number, 10))
    while True:
        start = values_of(one, x)
        y = [a.copy() for a in start]
        two.read(y, True, 10, begin=True)
        m = [state.copy() for state in one.snapshot()[1][0]]
        one.contribute(plus(2, start), 1.0, 10)
        two.contribute(plus(4, start), 1.0, 10)
        number += 1
        ended = next(died, None) is None
        one.take_over(rule, x, number, 10)
        for s, state in zip(start, m):
            rule.step(np.full_like(s, 3), s, (state,), 1.0)
        require_close(x, start, rtol=1e-5, err_msg=str(number))
        if ended:
            break
    assert number > 20


def test_a_death_within_the_loops_of_a_step_makes_no_element_move_twice(open_centers, form, monkeypatch):
    """As SIGKILL does within the loops in C: a part of a block has its step, and its totals are cleared."""
    shapes, rule = [(2 * STEP_BLOCK + 5,), (3,)], DiLoCo(0.5, 0.5)
    one, two, late = open_centers(rule, model(0, shapes), 3)
    real_step, deadly = RoundKernels.step, []

    def step(self, rule, block, *args):
        if deadly and deadly.pop():
            real_step(self, rule, slice(block.start, (block.start + block.stop) // 2), *args)
            raise Died
        return real_step(self, rule, block, *args)

    monkeypatch.setattr(RoundKernels, "step", step)
    c, m = 0.0, 0.0
    for number in range(1, 6):
        x = model(c, shapes)
        for center in (one, two, late):
            center.read(x, True, 10, begin=True)
        for center in (one, two):
            center.contribute(plus(number, x), 1.0, 10)
        deadly += [True] + [False] * (number % 3)
        with pytest.raises(Died):
            two.take_over(rule, model(0, shapes), number, 10)
        for center in (two, late):  # neither a second time nor in the midst of the step
            assert center.contribute(plus(100, x), 1.0, 10) is None
        one.take_over(rule, x, number, 10)
        m = 0.5 * m + number
        c += 0.5 * (number + 0.5 * m)
        require_all(x, c)


def test_a_death_while_others_values_are_written_leaves_sound_totals(open_centers):
    """Of what was added before, all counts or nothing; what is added later is not mixed with it."""
    rule, shapes = DiLoCo(0.5, 0.5), [(STEP_BLOCK + 5,), (3,)]
    one, two = open_centers(rule, model(0, shapes), 2)
    number, died = 0, deaths(lambda: two.write(model(number + 0.5, shapes), True, 10))
    while True:
        x = values_of(one, model(0, shapes))
        one.read(x, True, 10, begin=True)
        one.contribute(plus(1000, x), 1.0, 10)
        number += 1
        ended = next(died, None) is None
        one.take_over(rule, x, number, 10)
        one.write(model(0, shapes), True, 10)  # ends the momentum, too
        one.contribute(model(2, shapes), 1.0, 10)
        number += 1
        one.take_over(rule, x, number, 10)
        expected = model(0, shapes)
        for e in expected:
            rule.step(np.full_like(e, 2), e, (np.zeros_like(e),), 1.0)
        for a, e in zip(x, expected):
            np.testing.assert_array_equal(a, e, err_msg=str(number))
        if ended:
            break
    assert number > 20


def test_a_copy_for_a_checkpoint_is_of_one_round(open_centers, form):
    """A thread copies while two workers make rounds, so that some stripes are at the next round already."""
    rule, rounds = DiLoCo(0.5, 0.5), 15
    one, two, reader = open_centers(rule, model(0), 3)
    begun, copies = threading.Semaphore(0), []

    def read():
        for _ in range(rounds):
            begun.acquire()
            copies.append(reader.snapshot())

    thread = threading.Thread(target=read)
    thread.start()
    c, m, possible = 0.0, 0.0, [(0.0, 0.0)]
    x, y = model(0), model(0)
    for number in range(1, rounds + 1):
        for center, arrays in ((one, x), (two, y)):
            center.contribute(plus(number, arrays), 1.0, 10)
        begun.release()
        one.take_over(rule, x, number, 10)
        two.take_over(rule, y, number, 10)
        m = 0.5 * m + number
        c += 0.5 * (number + 0.5 * m)
        possible.append((c, m))
    thread.join(60)
    assert len(copies) == rounds
    for values, (momenta,) in copies:
        found = values[0].flat[0]
        expected = min(possible, key=lambda pair: abs(pair[0] - found))
        require_all(values, expected[0])
        require_all(momenta, expected[1])


def test_a_copy_between_rounds_is_waited_for_as_long_as_a_step_is_half_done(open_centers, monkeypatch, caplog):
    """A worker dies after a part of the stripes; another one finishes the round while the copy is asked for."""
    rule = DiLoCo(0.5, 0.5)
    one, two, reader = open_centers(rule, model(0), 3)
    for center in (one, two):
        center.contribute(model(4), 1.0, 10)
    monkeypatch.setattr(host_rounds.Rounds, "take_over", dying(host_rounds.Rounds.take_over, after=1))
    with pytest.raises(Died):
        two.take_over(rule, model(0), 1, 10)
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(reader.snapshot)
        one.take_over(rule, model(0), 1, 10)
        values, (momenta,) = copying.result(60)
    require_all(values, 0.5 * (4 + 0.5 * 4))
    require_all(momenta, 4)
    assert "mixes" not in caplog.text


def test_a_copy_is_made_all_the_same_where_nobody_finishes_the_round(open_centers, monkeypatch, caplog):
    rule = LocalSGD()
    one, two, reader = open_centers(rule, model(0), 3)
    for center in (one, two):
        center.contribute(model(4), 1.0, 10)
    monkeypatch.setattr(host_rounds.Rounds, "take_over", dying(host_rounds.Rounds.take_over, after=1))
    with pytest.raises(Died):
        two.take_over(rule, model(0), 1, 10)
    monkeypatch.setattr(host, "timeout", {"stripe": 0.05}.get)
    values, _ = reader.snapshot()
    assert {float(v) for array in values for v in np.unique(array)} == {0.0, 4.0}
    assert "this copy mixes two rounds" in caplog.text


def dying(method, after):
    """Let whoever calls a method die at the call after so many, once."""
    left = [*[False] * after, True]

    def call(*args):
        if left and left.pop(0):
            raise Died
        return method(*args)

    return call


def test_a_center_for_rounds_is_none_for_other_rules(open_centers):
    open_centers(LocalSGD(), model(0), 1)
    with pytest.raises(LayoutMismatchError, match="another model"):
        HostCenters(f"{segment_prefix()}test{os.getpid()}-rounds").attach(Layout.of(model(0)), EASGD(0.5), 1)


def test_another_rule_has_no_rounds(open_centers):
    center, *_ = open_centers(EASGD(0.5), model(0), 1)
    with pytest.raises(ConfigurationError, match="no rounds"):
        center.contribute(model(0), 1.0, 10)


def odd_values(rng, n, dtype):
    """Values of all sizes, with some that overflow, and some that are not finite."""
    values = (rng.standard_normal(n) * 10.0 ** rng.integers(-9, 9, n)).astype(dtype)
    values[rng.integers(0, n, 5)] = 0.9 * np.finfo(dtype).max
    return values


@needs_fused
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 15, STEP_BLOCK, STEP_BLOCK + 17])
@pytest.mark.parametrize("rule", OUTER, ids=str)
def test_both_forms_give_the_same_bits(rule, n, dtype, form, monkeypatch):
    if form == "numpy":
        return
    rng = np.random.default_rng(n)
    arrays = [odd_values(rng, n, dtype) for _ in range(4 if rule.center_state else 3)]
    x = odd_values(rng, n, dtype)
    x[n // 2] = np.nan
    found = []
    for _ in range(2):
        own, other, *changing = copies = [array.copy() for array in arrays]
        undo = np.zeros(undo_bytes(Layout.of([x]), len(changing) - 1), "uint8")
        kernels = RoundKernels(changing[0], tuple(changing[1:]), undo, np.empty(8 * STEP_BLOCK, "uint8"))
        told = [kernels.contribute(x, own)]
        with np.errstate(all="ignore"):
            told += [kernels.step(rule, block, [own, other, own], 3, 0.7) for block in host_kernels.blocks(n)]
        found.append((told, [array.tobytes() for array in copies]))
        monkeypatch.setattr(host_kernels, "find_fused", lambda *args: None)
    assert found[0] == found[1]
    assert found[0][0][0] is not None


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_no_order_of_arrival_changes_a_bit(open_centers, dtype):
    """Three workers contribute in any order, and any of them makes the step; the sum is in the order of the ranks."""
    rule, shapes = DiLoCo(0.7, 0.9), [(1000,), (7,)]
    # In another order the last one is lost in the sum.
    learned = [model(value, shapes, dtype) for value in (2**15, -(2**15), 2**-11)]
    bits = set()
    centers = open_centers(rule, model(0, shapes, dtype), 3)
    number = itertools.count(1)
    for order in reversed([*itertools.permutations(range(3))]):
        centers[0].write(model(0, shapes, dtype), True, 10)
        start = model(0, shapes, dtype)
        for center in centers:
            center.read(start, True, 10, begin=True)
        for rank in order:
            assert centers[rank].contribute(learned[rank], 1.0, 10) is None
        at = next(number)
        for rank in reversed(order):
            x = model(0, shapes, dtype)
            centers[rank].take_over(rule, x, at, 10)
            assert all(map(np.all, x))
            bits.add(b"".join(a.tobytes() for a in x))
    assert len(bits) == 1


def test_workers_that_join_late_get_memory_for_their_contributions(open_centers):
    """Three were planned. The fourth and fifth extend the memory, which the others then map."""
    rule = LocalSGD()
    centers = open_centers(rule, model(0), 5)
    for number in (1, 2):
        for rank in (4, 2, 0, 3, 1):
            start = values_of(centers[rank], model(0))
            assert centers[rank].contribute(plus(rank, start), 1.0, 10) is None
        x = model(0)
        for center in centers:
            center.take_over(rule, x, number, 10)
            require_all(x, 2.0 * number)


@pytest.mark.parametrize("dtype", ["float16", "longdouble"])
def test_a_dtype_without_fused_loops_takes_its_rounds_too(open_centers, dtype):
    rule, shapes = DiLoCo(0.5, 0.5), [*SHAPES, (STEP_BLOCK + 1,)]
    one, two = open_centers(rule, model(10, shapes, dtype), 2)
    x, y = model(11, shapes, dtype), model(15, shapes, dtype)
    one.contribute(x, 1.0, 10)
    two.contribute(y, 1.0, 10)
    one.take_over(rule, x, 1, 10)
    two.take_over(rule, y, 1, 10)
    require_all([*x, *y], 10 + 0.5 * 1.5 * 3)
