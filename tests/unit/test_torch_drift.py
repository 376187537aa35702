"""The comparison of parameters between workers in a torch loop, with the mean over them computed by hand."""

import contextlib
import math

import pytest

torch = pytest.importorskip("torch", reason="needs torch: `make test` runs this file in .nox/keras3")
from platoon_base.errors import ConfigurationError
from platoon_base.torch_loops.gradients import NUM_SLOTS, DriftCheck

pytestmark = [pytest.mark.keras, pytest.mark.loops]


class Workers:
    """Workers with a parameter of each of some tensors."""

    def __init__(self, tensors, count=3, every=1):
        self.tensors = [[tensor.clone() for tensor in tensors] for _ in range(count)]
        self.slots = [torch.zeros(NUM_SLOTS) for _ in range(count)]
        named = [[(f"p{i}", tensor) for i, tensor in enumerate(each)] for each in self.tensors]
        self.checks = [DriftCheck(each, slots, every) for each, slots in zip(named, self.slots)]

    def step(self, late=()):
        """Make a step, which those that are late do not begin; return the parameter that each worker refuses."""
        for worker, check in enumerate(self.checks):
            if worker not in late:
                check.put()
        mean = sum(self.slots) * torch.tensor(1 / len(self.slots))
        for slots in self.slots:
            slots.copy_(mean)
        return [self._refused(check) for worker, check in enumerate(self.checks) if worker not in late]

    def _refused(self, check):
        with contextlib.suppress(AssertionError):
            try:
                check.require_none()
            except ConfigurationError as exc:
                return str(exc).split()[1]
        return None


SHAPES = [(), (1,), (63,), (65,), (200,), (3, 70), (2, 3, 4, 5), (7, 0), (0,), (5, 1)]
TENSORS = [torch.arange(math.prod(shape)).reshape(shape) * 1e-4 + 1 for shape in SHAPES]


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


# Each dtype with one number of workers; `make test` leaves the others out.
@pytest.mark.parametrize(
    ("dtype", "count"),
    [
        pytest.param(dtype, count, marks=[pytest.mark.product] * (i % 2 == j))
        for i, dtype in enumerate(DTYPES)
        for j, count in enumerate((2, 7))
    ],
)
def test_equal_parameters_are_never_refused(dtype, count):
    workers = Workers([tensor.to(dtype) for tensor in TENSORS], count)
    for _ in range(1100):  # the number of a turn is one of 1024
        assert workers.step() == [None] * count


@pytest.mark.parametrize("index", [i for i, shape in enumerate(SHAPES) if math.prod(shape)])
@pytest.mark.parametrize("at", [0, -1])
def test_a_value_that_differs_is_found_wherever_it_is(index, at):
    workers = Workers(TENSORS)
    workers.tensors[1][index].view(-1)[at] *= 1.1
    found = {name for _ in range(200) for name in workers.step()}
    assert found == {None, f"p{index}"}


@pytest.mark.parametrize(("dtype", "roundings"), [(torch.float16, 2), (torch.bfloat16, 2), (torch.float32, 1000)])
def test_what_rounding_leaves_is_no_difference(dtype, roundings):
    workers = Workers([torch.ones(5, dtype=dtype)])
    workers.tensors[0][0] *= 1 + roundings * torch.finfo(dtype).eps
    assert workers.step() == [None] * 3
    workers.tensors[0][0] *= 1.2
    assert workers.step() == ["p0"] * 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_compared_by_their_number(value):
    workers = Workers([torch.full((5,), value), torch.ones(5)])
    assert workers.step() == [None] * 3
    workers.tensors[2][1][3] = value
    assert workers.step() == ["p1"] * 3


def test_of_many_steps_the_first_and_then_each_hundredth_is_looked_at():
    workers = Workers([torch.ones(5)], every=100)
    workers.step()
    workers.tensors[0][0][1] = 2
    assert [step for step in range(1, 201) if any(workers.step())] == [100, 200]


@pytest.mark.parametrize("every", [1, 10])
def test_workers_that_are_out_of_turn_begin_anew_together(every):
    """As after a step that failed on one worker before it began to average."""
    workers = Workers(TENSORS, every=every)
    for _ in range(13):
        workers.step()
    workers.step(late=[1])
    for _ in range(60):
        assert workers.step() == [None] * 3
    workers.tensors[0][0].mul_(2)
    assert {name for _ in range(20 * every) for name in workers.step()} == {None, "p0"}


# Flat buffers.


@pytest.mark.parametrize(
    ("by", "value", "result"),
    [
        (0.5, 6, 3),
        (torch.tensor(0.5), 6, 3),  # as on a device, where nobody waits for its value
        (1 / torch.tensor(0.0), 0, 0),  # the mean weight of a step of which all is masked, or nearly
        (1 / torch.tensor(1e-30), 0, 0),
    ],
)
def test_gradients_of_all_dtypes_are_scaled(solo_worker, by, value, result):
    from platoon_base.torch_loops import FlatAverage

    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    flats = FlatAverage(solo_worker, [torch.zeros(3, dtype=dtype) for dtype in dtypes], 1, torch.device("cpu"), None)
    for view in flats.views:
        view.fill_(value)
    flats.header.fill_(7)
    flats.scale(by)
    for view, dtype in zip(flats.views, dtypes):
        assert view.dtype == dtype
        assert view.tolist() == [result] * 3
    assert flats.header.tolist() == [7, 7]  # This worker's weight, and a number.


@pytest.mark.parametrize("as_factor", [float, torch.tensor], ids=["number", "tensor"])
def test_zeros_stay_zeros_whatever_the_factor(solo_worker, as_factor):
    """If all is masked, the mean weight is next to nothing, and its inverse overflows half precision."""
    from platoon_base.torch_loops import FlatAverage

    flats = FlatAverage(solo_worker, [torch.zeros(3, dtype=torch.float16)], 1, torch.device("cpu"), None)
    flats.scale(as_factor(1e30))
    assert flats.views[0].tolist() == [0, 0, 0]


def test_a_bucket_is_filled_together_with_its_header(solo_worker):
    from platoon_base.torch_loops import FlatAverage

    flats = FlatAverage(
        solo_worker, [torch.zeros(3), torch.zeros(2, dtype=torch.float64)], 1, torch.device("cpu"), None
    )
    gradients = [torch.arange(3.0), None]
    for view in flats.views:
        view.fill_(9)
    for whole in flats.wholes:
        whole.fill(gradients, (flats.header, torch.tensor([5.0, 6.0])) if whole is flats.wholes[-1] else None)
    assert [view.tolist() for view in flats.views] == [[0, 1, 2], [0, 0]]
    assert flats.header.tolist() == [5, 6]
