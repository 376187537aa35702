"""The layout: stripes that cover every element once, aligned views on one buffer, differences told by name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon_base.errors import LayoutMismatchError
from platoon_base.layout import ALIGNMENT, Layout, ParameterSpec

pytestmark = pytest.mark.base

EXAMPLES = settings(max_examples=80, deadline=None, derandomize=True)

specs = st.builds(
    ParameterSpec,
    st.sampled_from(["", "W", "b", "W\nb"]),
    st.lists(st.integers(0, 20), max_size=3).map(tuple),
    st.sampled_from(["float16", "float32", "float64"]),
)
layouts = st.lists(specs, min_size=1, max_size=6).map(lambda found: Layout(tuple(found)))


def itemsize(layout, piece):
    return np.dtype(layout.specs[piece.parameter].dtype).itemsize


@EXAMPLES
@given(layout=layouts, stripe_bytes=st.integers(1, 4000))
def test_every_element_is_in_exactly_one_stripe(layout, stripe_bytes):
    covered = [np.zeros(spec.size, int) for spec in layout.specs]
    for stripe in layout.stripes(stripe_bytes):
        for piece in stripe:
            covered[piece.parameter][piece.start : piece.stop] += 1
    for count in covered:
        np.testing.assert_array_equal(count, 1)


@EXAMPLES
@given(layout=layouts, stripe_bytes=st.integers(1, 4000))
def test_cuts_inside_a_parameter_are_at_cache_lines(layout, stripe_bytes):
    for stripe in layout.stripes(stripe_bytes):
        for piece in stripe:
            assert piece.start * itemsize(layout, piece) % ALIGNMENT == 0
            whole = layout.specs[piece.parameter].size
            assert piece.stop == whole or piece.stop * itemsize(layout, piece) % ALIGNMENT == 0


def test_stripes_by_hand():
    layout = Layout.of([np.zeros(40, "float32"), np.zeros(10, "float64")])  # 160 and 80 bytes
    assert layout.stripes(128) == [((0, 0, 32),), ((0, 32, 40), (1, 0, 8)), ((1, 8, 10),)]
    assert layout.stripes(1 << 20) == [((0, 0, 40), (1, 0, 10))]


@EXAMPLES
@given(layout=layouts)
def test_offsets_are_aligned_and_in_order(layout):
    assert all(offset % ALIGNMENT == 0 for offset in (*layout.offsets, layout.nbytes))
    ends = [offset + spec.nbytes for offset, spec in zip(layout.offsets, layout.specs)]
    assert all(end <= start for end, start in zip(ends, (*layout.offsets[1:], layout.nbytes)))


@EXAMPLES
@given(layout=layouts, offset=st.sampled_from([0, 64, 4096]))
def test_views_keep_what_is_written_to_each(layout, offset):
    buffer = bytearray(layout.nbytes + offset)
    for number, view in enumerate(layout.views(buffer, offset)):
        view[...] = number + 1
    for number, (view, spec) in enumerate(zip(layout.views(buffer, offset), layout.specs)):
        assert (view.shape, view.dtype.name) == (spec.shape, spec.dtype)
        np.testing.assert_array_equal(view, number + 1)
    assert not any(buffer[:offset])


@pytest.mark.parametrize(
    "other",
    [
        [("W", (2, 3), "float64"), ("b", (3,), "float32")],
        [("W", (3, 2), "float32"), ("b", (3,), "float32")],
        [("V", (2, 3), "float32"), ("b", (3,), "float32")],
        [("b", (3,), "float32"), ("W", (2, 3), "float32")],
        [("W", (2, 3), "float32")],
        [("W", (2, 3), "float32"), ("b", (3,), "float32"), ("", (), "float32")],
    ],
    ids=["dtype", "shape", "name", "order", "fewer", "more"],
)
def test_any_difference_changes_the_fingerprint_and_is_refused(other):
    job = Layout((ParameterSpec("W", (2, 3), "float32"), ParameterSpec("b", (3,), "float32")))
    layout = Layout(tuple(ParameterSpec(*spec) for spec in other))
    assert layout.fingerprint != job.fingerprint
    with pytest.raises(LayoutMismatchError, match="build the same model"):
        layout.require_same(job)


def test_the_first_difference_is_named():
    mine = Layout.of([np.zeros(1), np.zeros((2, 3), "float32"), np.zeros(9)], ["a", "W", "b"])
    theirs = Layout.of([np.zeros(1), np.zeros((3, 2), "float32"), np.zeros(8)], ["a", "", "b"])
    with pytest.raises(LayoutMismatchError) as caught:
        mine.require_same(theirs, whose="the checkpoint's")
    text = str(caught.value)
    assert "W float32[2, 3] as parameter 1" in text
    assert "the checkpoint's is unnamed float32[3, 2]" in text
    assert "[9]" not in text
