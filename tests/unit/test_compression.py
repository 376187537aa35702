"""The codecs between hosts, computed by hand, and the residuals by which their errors are made up for later."""

import numpy as np
import pytest

from platoon_base.compression import codecs
from platoon_base.compression.codecs import CHUNK, Blocks, Float16, TopK, Truncated, codec_of
from platoon_base.compression.packing import Packing, Residuals
from platoon_base.errors import ConfigurationError
from platoon_base.layout import Layout

pytestmark = pytest.mark.base

NAMES = ["float16", "bfloat16", "int8", "int4", "int2", "topk(0.01)", "topk(0.3)"]
SIZES = [1, 3, 127, 128, 129, 257, 4095, 4096, 4097, CHUNK]


@pytest.fixture(autouse=True, params=["C", "NumPy"])
def form(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr(codecs, "EXTENSION", None)
    elif codecs.EXTENSION is None:
        pytest.skip("the extension _codecs was not built")
    return request.param


def through(codec, values):
    """Encode and decode."""
    data = np.full(codec.nbytes(len(values)), 0xAB, "u1")
    codec.encode(values, data)
    out = np.full_like(values, 7)
    codec.decode(data, out)
    return out, data


def numbers(n, dtype="f4", seed=0):
    return np.random.default_rng(seed).standard_normal(n).astype(dtype)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_half_precision_is_that_of_numpy(n, dtype):
    values = numbers(n, dtype)
    np.testing.assert_array_equal(through(Float16(), values)[0], values.astype("f2").astype(dtype))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_bfloat16_keeps_eight_bits_of_the_fraction(n, dtype):
    values = numbers(n, dtype)
    out, data = through(Truncated(), values)
    assert len(data) == 2 * n
    assert (np.abs(out - values) <= np.abs(values) / 256).all()
    assert (out.astype("f4").view("u4") & 0xFFFF == 0).all()


def test_bfloat16_rounds_ties_to_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF818000], "u4")
    found = through(Truncated(), bits.view("f4"))[0].view("u4")
    assert [hex(each) for each in found] == ["0x3f800000", "0x3f820000", "0x3f810000", "0xbf820000"]


def blocks_by_hand(values, block, levels, parts):
    """Return what up to `levels` times a block's largest magnitude over `parts` give, one element after the other."""
    out = []
    for start in range(0, len(values), block):
        part = values[start : start + block]
        scale = np.float32(max(abs(float(each)) for each in part)) / np.float32(parts)
        inverse = np.float32(1) / scale
        for each in part:
            level = max(-levels, min(levels, int(np.rint(each * inverse))))
            out.append(values.dtype.type(level) * scale.astype(values.dtype))
    return np.array(out, values.dtype)


@pytest.mark.parametrize("n", [size for size in SIZES if size < CHUNK])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("codec", "levels", "parts"), [(Blocks(8), 127, 127), (Blocks(4), 7, 7), (Blocks(2), 1, 2)])
def test_blocks_are_those_computed_by_hand(codec, levels, parts, dtype, n):
    values = numbers(n, dtype)
    out, _ = through(codec, values)
    np.testing.assert_array_equal(out, blocks_by_hand(values, codec.block, levels, parts))
    for start in range(0, n, codec.block):
        own = slice(start, start + codec.block)
        assert np.abs(out[own] - values[own]).max() <= np.abs(values[own]).max() / parts * (
            0.5001 if levels == parts else 1.0001
        )


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("part", [0.01, 0.3])
def test_top_k_sends_the_largest_of_each_block(part, n):
    values = numbers(n)
    out, _ = through(TopK(part), values)
    for start in range(0, n, 4096):
        own, sent = values[start : start + 4096], out[start : start + 4096]
        kept = int(np.ceil(part * len(own)))
        largest = np.argsort(-np.abs(own), kind="stable")[:kept]
        scale = np.abs(own).max() / 127
        assert np.abs(sent[largest] - own[largest]).max() <= 0.51 * scale
        rest = np.ones(len(own), bool)
        rest[largest] = False
        assert not sent[rest].any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_is_not_finite_stays_so_and_spoils_no_neighbor(name, dtype):
    values = numbers(600, dtype)
    bad = [3, 255, 256, 599]
    values[bad] = [np.nan, np.inf, -np.inf, np.nan]
    out, _ = through(codec_of(name), values)
    assert np.flatnonzero(~np.isfinite(out)).tolist() == bad
    all_bad, _ = through(codec_of(name), np.full(5000, np.nan, dtype))
    assert np.isnan(all_bad[0])  # top-k has no room for all of them


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-40, 1.2e-38, 1e-30, 1e30, 3.4028235e38])
def test_zero_denormal_and_huge_numbers_stay_finite_and_keep_their_sign(name, dtype, largest):
    values = (np.linspace(-1, 1, 301) * largest).astype(dtype)
    out, _ = through(codec_of(name), values)
    assert np.isfinite(out).all()
    assert (out * np.sign(values) >= 0).all()
    assert (np.abs(out.astype("f8")) <= 1.01 * np.abs(values.astype("f8")).max()).all()


@pytest.mark.parametrize("name", NAMES)
def test_numbers_beyond_float32_stay_finite(name):
    values = np.array([1e300, -1e300, 1.0], "f8")
    out, _ = through(codec_of(name), values)
    assert np.isfinite(out).all()
    assert out[0] > 0


@pytest.mark.parametrize("name", NAMES)
def test_nothing_at_all_takes_no_bytes(name):
    codec = codec_of(name)
    assert codec.nbytes(0) == 0
    through(codec, np.empty(0, "f4"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", SIZES)
def test_both_forms_give_the_same_bytes_and_bits(name, n, monkeypatch):
    codec, random = codec_of(name), np.random.default_rng(n)
    bits = random.integers(0, 1 << 32, n, dtype="u4").view("f4")  # any exponent, with NaN and infinity
    whole = np.rint(random.standard_normal(n) * 3).astype("f4")  # with many ties
    for values in (bits, whole, numbers(n), np.zeros(n, "f4"), -np.abs(numbers(n)) * np.float32(1e-38)):
        out, data = through(codec, values)
        with monkeypatch.context() as without:
            without.setattr(codecs, "EXTENSION", None)
            other, others_data = through(codec, values)
        assert data.tobytes() == others_data.tobytes()
        assert out.tobytes() == other.tobytes()


def test_bytes_are_little_endian():
    _, data = through(Blocks(8), np.array([127.0, -1.0], "f4"))
    assert data.tobytes() == b"\0\0\x80\x3f\x7f\xff"
    _, data = through(Blocks(4), np.array([7.0, -1.0, 2.0], "f4"))
    assert data.tobytes() == b"\0\0\x80\x3f\xf7\x02"
    _, data = through(Blocks(2), np.array([2.0, -1.0, 0.4, 0.6, -2.0], "f4"))
    assert data.tobytes() == b"\0\0\x80\x3f\x4d\x03"
    _, data = through(TopK(0.5), np.array([1.0, 127.0, 0.0], "f4"))
    assert data.tobytes() == b"\0\0\x80\x3f\x00\x00\x01\x00\x01\x7f\0\0"
    _, data = through(Truncated(), np.array([1.0], "f4"))
    assert data.tobytes() == b"\x80\x3f"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("zip", "it must be none, float16"),
        ("int16", "it must be none, float16"),
        ("topk", "topk(0.01)"),
        ("topk(0)", "more than 0 and at most 0.5"),
        ("topk(0.6)", "more than 0 and at most 0.5"),
        ("topk(x)", "more than 0 and at most 0.5"),
        ("topk(nan)", "more than 0 and at most 0.5"),
    ],
)
def test_a_codec_that_does_not_exist_is_refused(text, says):
    with pytest.raises(ConfigurationError) as refusal:
        codec_of(text)
    assert repr(text) in str(refusal.value)
    assert says in str(refusal.value)


def model(seed):
    random = np.random.default_rng(seed)
    return [
        random.standard_normal((300, 300)).astype("f4"),
        random.integers(-9, 9, 7),
        random.standard_normal(5).astype("f2"),
        np.empty((0, 3), "f4"),
        random.standard_normal(1000),
        np.array(random.standard_normal(), "f4"),
        random.integers(0, 2, 3).astype(bool),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_unpacked_lags_by_one_error_behind_what_was_packed(name):
    """Over all rounds together no more is missing than the residual, whatever the codec drops in one of them."""
    layout = Layout.of(model(0))
    packing = Packing(layout, codec_of(name))
    residuals = Residuals(layout, bytearray(Residuals.size_bytes(layout)))
    data = np.zeros(packing.nbytes, "u1")
    put_in, came_out = [np.zeros(a.shape, "f8") for a in model(0)], [np.zeros(a.shape, "f8") for a in model(0)]
    for number in range(1, 41):
        arrays = model(number)
        before, after = residuals.begin(number, 0)
        for total, array in zip(put_in, arrays):
            total += array
        packing.pack(arrays, before, after, data)
        residuals.end(number)
        received = layout.empty()
        packing.unpack(data, received)
        for total, array, own in zip(came_out, received, arrays):
            assert array.tobytes() == own.tobytes()  # the sender goes on with what the receivers get
            total += array
    for i, (given, found) in enumerate(zip(put_in, came_out)):
        missing = residuals.latest[i] if layout.specs[i].dtype.startswith("float") else 0
        np.testing.assert_allclose(found + missing, given, rtol=1e-5, atol=1e-4)


def test_a_residual_does_not_keep_what_is_not_finite():
    layout = Layout.of([np.zeros(3, "f4")])
    packing = Packing(layout, Blocks(8))
    zeros, after = [np.zeros(3, "f4")], [np.full(3, 9, "f4")]
    arrays = [np.array([np.nan, 1.0, np.inf], "f4")]
    packing.pack(arrays, zeros, after, np.zeros(packing.nbytes, "u1"))
    assert np.isfinite(arrays[0]).tolist() == [False, True, False]
    assert after[0][[0, 2]].tolist() == [0, 0]
    assert abs(after[0][1]) < 0.01


def test_a_contribution_that_is_packed_again_gives_the_same_bytes():
    layout = Layout.of([np.zeros(1000, "f4")])
    packing, memory = Packing(layout, Blocks(4)), bytearray(Residuals.size_bytes(layout))
    packed = []
    for number in (1, 2, 2, 2, 3):  # as by couriers that are started again in the middle of round 2
        residuals, data = Residuals(layout, memory), np.zeros(packing.nbytes, "u1")
        before, after = residuals.begin(number, 5)
        packing.pack([numbers(1000, seed=number)], before, after, data)
        residuals.end(number)
        packed.append(data.tobytes())
    assert packed[1] == packed[2] == packed[3]
    assert len(set(packed)) == 3


def test_a_contribution_that_did_not_count_leaves_the_residual_as_it_was():
    layout = Layout.of([np.zeros(9, "f4")])
    residuals = Residuals(layout, bytearray(Residuals.size_bytes(layout)))
    residuals.begin(1, 0)[1][0][:] = 1
    residuals.end(1)
    residuals.begin(2, 0)[1][0][:] = 2
    residuals.end(2)
    residuals.undo(1)  # too late: it has counted
    assert residuals.latest[0].tolist() == [2] * 9
    residuals.undo(2)
    residuals.undo(2)
    assert residuals.latest[0].tolist() == [1] * 9


def test_an_overwritten_center_has_no_residual():
    layout = Layout.of([np.zeros(9, "f4")])
    residuals = Residuals(layout, bytearray(Residuals.size_bytes(layout)))
    residuals.begin(1, 3)[1][0][:] = 1
    residuals.end(1)
    assert residuals.begin(2, 3)[0][0].tolist() == [1] * 9
    assert residuals.begin(2, 4)[0][0].tolist() == [0] * 9


@pytest.mark.parametrize("name", NAMES[:5])
def test_a_reference_follows_its_target_alike_on_both_sides(name):
    layout = Layout.of(model(0))
    packing = Packing(layout, codec_of(name))
    target, reference, theirs = model(1), model(0), model(0)
    data = np.zeros(packing.nbytes, "u1")
    for _ in range(24):
        packing.advance(reference, target, data)
        packing.follow(theirs, data)
        for own, copy in zip(reference, theirs):
            assert own.tobytes() == copy.tobytes()
    for own, wanted in zip(reference, target):
        np.testing.assert_allclose(own.astype("f8"), wanted.astype("f8"), rtol=1e-3, atol=1e-5)
