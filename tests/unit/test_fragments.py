"""How a center is cut into fragments, and what rules say of them."""

import numpy as np
import pytest
from pairwise import pairwise

from platoon_base.centers.fragments import Fragments, stripe_bytes_for
from platoon_base.centers.stripes import cut
from platoon_base.errors import ConfigurationError
from platoon_base.layout import Layout
from platoon_base.rules import EASGD, DiLoCo, LocalSGD, SlowMo, fragments_of, overlap_of, parse_rule, round_every

pytestmark = pytest.mark.base

MODELS = {
    "one large": [np.zeros(100_003, "f4")],
    "many small": [np.zeros(n % 7, "f8") for n in range(60)],
    "mixed": [np.zeros((300, 70), "f2"), np.zeros(5), np.zeros((), "f4"), np.zeros(40_000, "f4"), np.zeros(0, "f4")],
}


@pairwise("name,wanted,count", list(MODELS), [64, 4096, 1 << 21], [1, 2, 3, 4, 7])
def test_each_element_is_in_one_fragment(name, wanted, count):
    layout = Layout.of(MODELS[name])
    stripes = layout.stripes(stripe_bytes_for(layout, count, wanted))
    fragments = Fragments(layout, stripes, count)
    assert len(list(fragments)) == len(fragments) == count
    seen = [np.zeros(array.shape, "i4") for array in MODELS[name]]
    found = []
    for number, fragment in enumerate(fragments, 1):
        assert fragments.of_round(number) is fragments.of_round(number + count) is fragment
        found += fragment.stripes
        arrays = fragment.layout.views(np.zeros(fragment.layout.nbytes, "u1"))
        for piece in cut(seen, fragment.pieces):
            piece += 1
        for index in fragment.stripes:  # the pieces of a stripe are the same elements in both
            inside, whole = cut(arrays, fragment.of_stripe(index)), cut(seen, stripes[index])
            assert [each.size for each in inside] == [each.size for each in whole]
            for each in inside:
                each += 1
        assert all((array == 1).all() for array in arrays)
    assert found == list(range(len(stripes)))
    assert all((array == 1).all() for array in seen)


def test_rules_say_what_does_not_go_together():
    for fragments in (0, -1, 2.0, True, None, "4"):
        with pytest.raises(ConfigurationError, match=f"got fragments={fragments!r}: it is the number of parts"):
            LocalSGD(fragments=fragments)
    with pytest.raises(ConfigurationError, match="averaged in another round than the parameter; leave one"):
        LocalSGD(moments=True, fragments=2)
    with pytest.raises(ConfigurationError, match="got overlap=0.5 and fragments=4: .* give at most 0.25"):
        DiLoCo(overlap=0.5, fragments=4)
    for fragments in range(2, 30):
        with pytest.raises(ConfigurationError) as refused:
            DiLoCo(overlap=0.9, fragments=fragments)
        assert DiLoCo(overlap=float(str(refused.value).split()[-1]), fragments=fragments)
        assert overlap_of(LocalSGD(overlap=1 / fragments, fragments=fragments)) == pytest.approx(1)


def test_rules_are_written_as_they_are_read():
    for text in ("LocalSGD(fragments=4)", "LocalSGD(overlap=0.2, fragments=3)"):
        assert repr(parse_rule(text)) == text
    rule = DiLoCo(0.5, 0.6, 0.25, 4)
    assert parse_rule(repr(rule)) == rule
    assert "fragments" not in repr(LocalSGD(overlap=0.5)) + repr(DiLoCo())
    assert [fragments_of(each) for each in (rule, DiLoCo(), SlowMo(), EASGD())] == [4, 1, 1, 1]


def test_a_round_follows_each_part_of_the_period():
    assert [round_every(LocalSGD(fragments=4), period) for period in (4, 10, 20)] == [1, 2, 5]
    assert [round_every(rule, 7) for rule in (LocalSGD(), EASGD())] == [7, 7]
    with pytest.raises(ConfigurationError, match="a period of 3 batches: a round follows each 1/4 of it"):
        round_every(LocalSGD(fragments=4), 3)
