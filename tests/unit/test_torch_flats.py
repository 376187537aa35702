"""Flat buffers of torch's gradients: all dtypes together, on whatever device."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch: `make test` runs this file in .nox/keras3")
pytestmark = pytest.mark.keras


@pytest.mark.parametrize("factor", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_gradients_of_all_dtypes_are_scaled(factor):
    """On a device the factor is a tensor: nobody waits for its value."""
    from platoon_base.torch_loops import Flats

    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    flats = Flats([torch.zeros(3, dtype=dtype) for dtype in dtypes], 1, torch.device("cpu"), None)
    for view in flats.views:
        view.fill_(6)
    flats.scale(factor)
    for view, dtype in zip(flats.views, dtypes):
        assert view.dtype == dtype
        assert view.tolist() == [3, 3, 3]


@pytest.mark.parametrize("as_factor", [float, torch.tensor], ids=["number", "tensor"])
def test_zeros_stay_zeros_whatever_the_factor(as_factor):
    """If all is masked, the mean weight is next to nothing, and its inverse overflows half precision."""
    from platoon_base.torch_loops import Flats

    flats = Flats([torch.zeros(3, dtype=torch.float16)], 1, torch.device("cpu"), None)
    flats.scale(as_factor(1e30))
    assert flats.views[0].tolist() == [0, 0, 0]
