"""The fused loops and the blocked NumPy form against the equations: the same bits, the same elements left out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pairwise import pairwise
from rule_table import RULES, arguments_of, by_the_equations, run_once

from platoon_base.centers import host_kernels as kernels
from platoon_base.centers.host_kernels import BLOCK, HAVE_FUSED, Plan
from platoon_base.errors import ConfigurationError
from platoon_base.rules import ASGD, EASGD, Adopt, CenterMomentum, CenterState, DiLoCo, LocalState

pytestmark = pytest.mark.base

needs_fused = pytest.mark.skipif(
    not HAVE_FUSED, reason="no C extension (or PLATOON_NO_KERNELS is set): python setup.py build_ext --inplace"
)
FORMS = [pytest.param("fused", marks=needs_fused), "numpy"]
SIZES = [0, 1, 15, 16, BLOCK - 1, BLOCK, BLOCK + 1, 100_001]
DTYPES = ["float32", "float64"]


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """Either form, chosen as a missing extension chooses it, and watched so that it is the one that runs."""
    ran = []
    real_form = Plan.fused_form

    def fused_form(self, rule):
        found = real_form(self, rule) if request.param == "fused" else None
        ran.append("fused" if found else "numpy")
        return found

    monkeypatch.setattr(Plan, "fused_form", fused_form)
    yield request.param
    assert set(ran) == {request.param}


def arrays(rule, size, dtype, seed=0):
    """Local, center, local states and center states, of ordinary values."""
    rng = np.random.default_rng(seed)
    count = 2 + len(rule.local_state) + len(rule.center_state)
    return [rng.standard_normal(size).astype(dtype) for _ in range(count)]


def piece(x, c, *states):
    return x, c, tuple(states[:1]), tuple(states[1:])


def check(rule, before):
    """One update of copies of ``before`` against the oracle, bit by bit; returns the element told."""
    now = [a.copy() for a in before]
    told = run_once(rule, [arguments_of(rule, now)])
    expected, first = by_the_equations(rule, before)
    for got, want in zip(now, expected):
        assert got.tobytes() == want.tobytes()
    assert told == (None if first is None else (0, first))
    return told


@pairwise("rule,size,dtype", [*RULES, EASGD(0.1), EASGD(0.9 / 7), EASGD(1.0)], SIZES, DTYPES)
def test_bits_of_the_equations(form, rule, size, dtype):
    assert check(rule, arrays(rule, size, dtype)) is None


@pairwise(
    "rule,at,bad,dtype",
    [EASGD(0.5), ASGD()],
    [0, 1, 15, BLOCK - 1, BLOCK, 2 * BLOCK + 77, 3 * BLOCK - 1],
    ["x nan", "x inf", "c nan", "overflow"],
    DTYPES,
)
def test_what_is_not_finite_stays_out(form, rule, at, bad, dtype):
    before = arrays(rule, 3 * BLOCK, dtype)
    x, c = before[:2]
    huge = 0.9 * np.finfo(dtype).max
    if bad == "overflow":
        x[at], c[at] = huge, -huge
        if isinstance(rule, ASGD):
            before[2][at] = -huge
    else:
        {"x": x, "c": c}[bad[0]][at] = float(bad[2:])
    assert check(rule, before) == (0, at)


class ManyStates(EASGD):
    """Two local states that remember the center, one that follows a center state; two momenta."""

    local_state = ("one", LocalState("frame_x", follows="frame"), "two")
    center_state = ("m", CenterState("frame", kept=True), "n")


def adopted(before, remembering, momenta):
    """The equations of `Adopt` on whole arrays, by the places of its states among ``before``."""
    x, c = before[:2]
    after = [x, x, *before[2:]]
    for i in remembering:
        after[i] = x
    for i in momenta:
        after[i] = np.where(c != x, x.dtype.type(0), before[i])
    return after


# Rules, with the places of the states that remember, of the momenta, and of all center states.
ADOPTED = [
    (EASGD(0.5), [], [], []),
    (ASGD(), [2], [], []),
    (DiLoCo(), [], [2], [2]),
    (CenterMomentum().resolved(4), [], [3], [3, 4]),
    (ManyStates(0.5), [2, 4], [5, 7], [5, 6, 7]),
]


@pairwise("case,size,dtype", ADOPTED, [0, 1, 1023, 1024, 1025, BLOCK + 1, 300_001], DTYPES)
def test_alone_both_forms_give_the_bits_of_the_equations(form, case, size, dtype):
    """Also where values are equal, zeros of either sign, NaN and infinities, in the parameters and in any state."""
    rule, remembering, momenta, at_center = case
    clean = arrays(rule, size, dtype)
    clean[1][::3] = clean[0][::3]
    clean[0][1::7], clean[1][1::7] = 0.0, -0.0
    spoilt = [array.copy() for array in clean]
    for i, array in enumerate(spoilt):
        array[size // 2 + i : size // 2 + 40 : 8] = np.nan if i % 2 else np.inf
    for before in (clean, spoilt):
        after = adopted(before, remembering, momenta)
        finite = np.isfinite([after[1], *(after[i] for i in at_center)]).all(axis=0)
        now = [array.copy() for array in before]
        split = 2 + len(rule.local_state)
        told = run_once(Adopt(rule), [(now[0], now[1], tuple(now[2:split]), tuple(now[split:]))])
        for got, new, old in zip(now, after, before):
            assert got.tobytes() == np.where(finite, new, old).tobytes()
        assert told == (None if finite.all() else (0, int(np.argmin(finite))))


def test_alone_a_piece_may_begin_anywhere(form):
    """Large pieces are written past the caches where they are aligned for that."""
    for offset in (0, 1, 2, 3):
        x, c = np.random.default_rng(0).standard_normal((2, 400_003)).astype("float32")
        run_once(Adopt(EASGD()), [(x[offset:], c[offset:], (), ())])
        np.testing.assert_array_equal(c[offset:], x[offset:])


def test_the_first_of_several_is_told(form):
    pieces = [piece(*arrays(EASGD(0.5), 2 * BLOCK, "float32", seed)) for seed in range(4)]
    for i, at in ((1, BLOCK + 3), (1, BLOCK + 9), (2, 0)):
        pieces[i][0][at] = np.inf
    before = [[a.copy() for a in p[:2]] for p in pieces]
    assert run_once(EASGD(0.5), pieces) == (1, BLOCK + 3)
    for p, b in zip(pieces, before):
        for got, want in zip(p, by_the_equations(EASGD(0.5), b)[0]):
            assert got.tobytes() == want.tobytes()


def every_float(dtype):
    width = np.dtype(dtype).itemsize * 8
    return st.integers(1, 40).flatmap(
        lambda n: st.tuples(*[hnp.arrays(dtype, n, elements=st.floats(width=width)) for _ in range(3)])
    )


def any_values(dtype):
    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(values=every_float(dtype), alpha=st.floats(0, 1, exclude_min=True))
    def run(values, alpha):
        x, c, x_old = values
        c = np.where(np.isfinite(c), c, c.dtype.type(0))  # the center is finite always
        for rule, before in ((EASGD(alpha), [x, c]), (ASGD(), [x, c, x_old])):
            now = [a.copy() for a in before]
            told = run_once(rule, [piece(*now)])
            expected, first = by_the_equations(rule, before)
            for got, want in zip(now, expected):
                assert got.tobytes() == want.tobytes()
            assert np.isfinite(now[1]).all()
            assert told == (None if first is None else (0, first))

    return run


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_values_denormals_too(form, dtype):
    any_values(dtype)()


@pytest.mark.parametrize("rule", [EASGD(0.3), ASGD()], ids=str)
@pytest.mark.parametrize("start", [1, 3, 15])
def test_slices_that_begin_off_a_cache_line(form, rule, start):
    whole = arrays(rule, BLOCK + 50, "float32")
    before = [a.copy() for a in whole]
    assert run_once(rule, [piece(*(a[start:-start] for a in whole))]) is None
    expected, _ = by_the_equations(rule, [a[start:-start] for a in before])
    for got, old, want in zip(whole, before, expected):
        assert got[start:-start].tobytes() == want.tobytes()
        assert (got[:start] == old[:start]).all()
        assert (got[-start:] == old[-start:]).all()


@pytest.mark.parametrize("rule", [EASGD(0.3), ASGD()], ids=str)
def test_a_plan_runs_often_on_many_small_pieces(form, rule):
    pieces = [arrays(rule, size, "float32", seed=size) for size in (*range(60), BLOCK + 1)]
    plan = Plan([p[1] for p in pieces], [[p[2] for p in pieces]] if rule.local_state else [])
    expected = [[a.copy() for a in p] for p in pieces]
    for step in range(3):  # the local memory moves between the runs
        local = [p[0] + np.float32(step) for p in expected]
        for p, x in zip(expected, local):
            p[0] = x.copy()
        assert plan.run(rule, local) is None
        expected = [by_the_equations(rule, p)[0] for p in expected]
        for x, p, want in zip(local, pieces, expected):
            for got, value in zip((x, *p[1:]), want):
                assert got.tobytes() == value.tobytes()


@needs_fused
@pytest.mark.parametrize("strange", ["unaligned", "big-endian", "strided center", "float16", "mixed"])
def test_what_the_fused_loops_cannot_take_goes_through_numpy(strange):
    values = arrays(EASGD(0.5), 100, "float32")
    if strange == "unaligned":
        x = np.empty(401, np.uint8)[1:].view(np.float32)
        x[:] = values[0]
        values[0] = x
        assert not x.flags.aligned
    elif strange == "big-endian":
        values = [a.astype(">f4") for a in values]
    elif strange == "strided center":
        c = np.zeros((100, 2), np.float32)[:, 0]
        c[:] = values[1]
        values[1] = c
    elif strange == "float16":
        values = [a.astype("float16") for a in values]
    expected, _ = by_the_equations(EASGD(0.5), [a.copy() for a in values])
    pieces = [piece(*values)]
    if strange == "mixed":
        pieces.append(piece(*arrays(EASGD(0.5), 7, "float64")))
    assert run_once(EASGD(0.5), pieces) is None
    for got, want in zip(values, expected):
        np.testing.assert_array_equal(got, want)


def test_what_does_not_fit_is_refused():
    x, c = (np.zeros(8, np.float32) for _ in range(2))
    read_only = np.zeros(8, np.float32)
    read_only.flags.writeable = False
    plan = Plan([c])
    for local, text in (
        ([], "got 0 arrays"),
        ([x[:4]], r"shape \(4,\)"),
        ([x.astype("float64")], "float64"),
        ([np.zeros((8, 1), np.float32)], "1-d"),
        ([np.zeros(16, np.float32)[::2]], "non-contiguous"),
        ([read_only], "read-only"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            plan.run(EASGD(0.5), local)
    with pytest.raises(ConfigurationError, match="read-only"):
        Plan([read_only])
    with pytest.raises(ConfigurationError, match="make a plan for this rule"):
        plan.run(ASGD(), [x])
    with pytest.raises(ConfigurationError, match="center states"):
        run_once(ASGD(), [piece(x, c)])
    with pytest.raises(ConfigurationError, match="shape"):
        Plan([c], [[np.zeros(4, np.float32)]])
    with pytest.raises(ConfigurationError, match="float64"):
        Plan([c], [[np.zeros(8)]])
    with pytest.raises(ConfigurationError, match="a state of 0 arrays"):
        Plan([c], [[]])
    assert not x.any()
    assert not c.any()


@needs_fused
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_extension_checks_its_arguments(dtype):
    easgd = getattr(kernels.EXTENSION, f"easgd_{dtype}")
    asgd = getattr(kernels.EXTENSION, f"asgd_{dtype}")
    for wrong in ((), (0, 0), ("0", 0, 0.5), (0.0, 0, 0.5), (0, "0", 0.5), (0, 0, "0"), (0, 0, 0.5, 1), (None, 0, 0.5)):
        with pytest.raises(TypeError):
            easgd(*wrong)
    for wrong in ((), (0,), (0, 0.0), (0, 0, 0.5)):
        with pytest.raises(TypeError):
            asgd(*wrong)
    with pytest.raises(ValueError, match="-1 pieces"):
        easgd(0, -1, 0.5)
    adopt = getattr(kernels.EXTENSION, f"adopt_{dtype}")
    for states, own in ((1, 2), (65, 0), (-1, -1)):
        with pytest.raises(ValueError, match=f"got {states} states, {own} of them local"):
            adopt(0, 0, states, own, 0, 0)
    x, c = np.ones(4, dtype), np.zeros(4, dtype)
    table = np.array([[x.ctypes.data, c.ctypes.data, 4], [0, 0, -5]], np.int64)
    with pytest.raises(ValueError, match="-5 elements in row 1"):
        easgd(table.ctypes.data, 2, 0.5)
    assert not c.any(), "nothing may be changed before all rows are checked"
    assert easgd(table.ctypes.data, 1, 0.5) is None
    np.testing.assert_array_equal(c, 0.5)
    assert easgd(0, 0, 0.5) is None
