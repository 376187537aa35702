"""Flat buffers of torch's gradients: all dtypes together, on whatever device."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch: `make test` runs this file in .nox/keras3")
pytestmark = [pytest.mark.keras, pytest.mark.loops]


@pytest.mark.parametrize("factor", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_gradients_of_all_dtypes_are_scaled(solo_worker, factor):
    """On a device the factor is a tensor: nobody waits for its value."""
    from platoon_base.torch_loops import FlatAverage

    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    flats = FlatAverage(solo_worker, [torch.zeros(3, dtype=dtype) for dtype in dtypes], 1, torch.device("cpu"), None)
    for view in flats.views:
        view.fill_(6)
    flats.scale(factor)
    for view, dtype in zip(flats.views, dtypes):
        assert view.dtype == dtype
        assert view.tolist() == [3, 3, 3]


@pytest.mark.parametrize("as_factor", [float, torch.tensor], ids=["number", "tensor"])
def test_zeros_stay_zeros_whatever_the_factor(solo_worker, as_factor):
    """If all is masked, the mean weight is next to nothing, and its inverse overflows half precision."""
    from platoon_base.torch_loops import FlatAverage

    flats = FlatAverage(solo_worker, [torch.zeros(3, dtype=torch.float16)], 1, torch.device("cpu"), None)
    flats.scale(as_factor(1e30))
    assert flats.views[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("divisor", "quotient"), [(4.0, 1.5), (0.0, None), (1e-30, None)])
def test_gradients_of_all_dtypes_are_divided(solo_worker, divisor, quotient):
    """By the mean weight of a step: with 0, or next to nothing, all gradients are zeros and remain so."""
    from platoon_base.torch_loops import FlatAverage

    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    flats = FlatAverage(solo_worker, [torch.zeros(3, dtype=dtype) for dtype in dtypes], 1, torch.device("cpu"), None)
    for view in flats.views:
        view.fill_(0 if quotient is None else 6)
    flats.header.fill_(7)
    flats.divide(torch.tensor(divisor))
    for view, dtype in zip(flats.views, dtypes):
        assert view.dtype == dtype
        assert view.tolist() == [quotient or 0] * 3
    assert flats.header.tolist() == [7]


def test_a_bucket_is_filled_together_with_its_header(solo_worker):
    from platoon_base.torch_loops import FlatAverage

    flats = FlatAverage(
        solo_worker, [torch.zeros(3), torch.zeros(2, dtype=torch.float64)], 2, torch.device("cpu"), None
    )
    gradients = [torch.arange(3.0), None]
    for view in flats.views:
        view.fill_(9)
    for whole in flats.wholes:
        whole.fill(gradients, (flats.header, torch.tensor([5.0, 6.0])) if whole is flats.wholes[-1] else None)
    assert [view.tolist() for view in flats.views] == [[0, 1, 2], [0, 0]]
    assert flats.header.tolist() == [5, 6]
