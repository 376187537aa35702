"""Tensors of torch as parameters: their memory itself, whatever the model does with it between two synchronizations."""

import numpy as np
import pytest

from platoon_base import ASGD
from platoon_base.devices.isolation import warn_if_not_on_device
from platoon_base.errors import ConfigurationError, PlatoonWarning
from platoon_base.parameters import Parameters

torch = pytest.importorskip("torch", reason="needs torch: `make test` runs this file in .nox/keras3")
pytestmark = [pytest.mark.keras, pytest.mark.loops]


def test_the_parameters_of_a_module_are_changed_in_place():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    parameters = Parameters(model.parameters())
    assert [spec.shape for spec in parameters.layout.specs] == [(2, 3), (2,), (1, 2), (1,)]
    arrays = parameters.borrow()
    for array in arrays:
        array += 1
    parameters.give_back(arrays)
    for tensor, array in zip(model.parameters(), arrays):
        np.testing.assert_array_equal(tensor.detach().numpy(), array)
        assert tensor.data_ptr() == array.ctypes.data
    model[0].weight.data = torch.zeros(2, 3)  # other memory
    assert not parameters.borrow()[0].any()


def test_a_tensor_that_is_not_contiguous_is_copied_out_and_back():
    tensor = torch.arange(6.0).reshape(2, 3).T
    parameters = Parameters([tensor])
    (array,) = parameters.borrow()
    array *= 2
    parameters.give_back([array])
    np.testing.assert_array_equal(tensor.numpy(), 2 * np.arange(6.0).reshape(2, 3).T)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (torch.zeros(3), "pass a list"),
        (torch.nn.Linear(2, 2), "^got Linear as parameters: .*model.named_parameters\\(\\)"),
        (torch.optim.SGD([torch.zeros(2)], 0.1), "^got SGD as parameters: .*model.named_parameters\\(\\)"),
        ([torch.zeros(3, dtype=torch.bfloat16)], "torch.autocast"),
        ([torch.zeros(3, dtype=torch.int64)], "leave counters and seeds out"),
        ([torch.zeros(3, dtype=torch.complex64)], "complex numbers as pairs"),
        ([torch.nn.Linear(2, 2)], "list\\(model.parameters\\(\\)\\) of torch"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_what_to_pass(given, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        Parameters(given)


def test_a_model_that_becomes_bfloat16_is_refused_with_what_to_do():
    model = torch.nn.Linear(2, 2)
    parameters = Parameters(model.named_parameters())
    model.bfloat16()
    with pytest.raises(ConfigurationError, match=r"weight is a tensor of torch.bfloat16.*torch.autocast"):
        parameters.borrow()


@pytest.mark.parametrize("named", [False, True])
def test_a_model_that_was_left_on_the_host_of_a_gpu_worker_is_warned_of(named):
    model = torch.nn.Linear(2, 2)
    with pytest.warns(PlatoonWarning, match=r"given cuda7\d, but all its parameters are in the memory of the host"):
        warn_if_not_on_device(f"cuda7{int(named)}", model.named_parameters() if named else model.parameters())


def test_parameters_in_float64_are_named_in_the_words_of_torch():
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2), "last": torch.nn.Linear(2, 2).double()}).to("meta")
    with pytest.warns(PlatoonWarning, match=r"^last.weight, last.bias: float64 on cuda73.*model.float\(\)") as said:
        warn_if_not_on_device("cuda73", model.named_parameters())
    assert not any("THEANO" in str(each.message) for each in said)


@pytest.mark.parametrize("of_a_module", [True, False])
def test_frozen_parameters_of_a_module_are_no_reason_for_a_warning(job_of_one, caplog, of_a_module):
    """Other tensors without autograd are: they may be trained by hand."""
    layer = torch.nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    job_of_one.init_shared_params([layer.weight, layer.bias if of_a_module else layer.bias.detach()], ASGD())
    for _ in range(5):
        with torch.no_grad():
            layer.weight += 0.1
        job_of_one.sync_params()
    assert ["did not change" in record.getMessage() for record in caplog.records] == [True] * (not of_a_module)
