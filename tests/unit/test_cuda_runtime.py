"""What the center in the memory of CUDA devices needs without pygpu, as far as it is to be had without a device."""

import numpy as np
import pytest
from needing import needs_package
from processor_cuda import OnProcessor
from programs import run_python
from rule_table import ON_DEVICES
from scripts_here import script_path

from platoon_base.centers.device_source import kernel_source, operations
from platoon_base.devices.cuda import compile_source
from platoon_base.devices.runtime import CudaRuntime
from platoon_base.errors import BackendUnavailableError
from platoon_base.parameters import Parameters, assign
from platoon_base.rules.center import form_of

pytestmark = pytest.mark.base

needs_nvrtc = needs_package("cuda", "pip install 'platoon-plugins[cuda]'")


@needs_nvrtc
@pytest.mark.parametrize("rule", ON_DEVICES, ids=lambda rule: rule.kernel)
@pytest.mark.parametrize("machine", ["sm_75", "sm_90"])
def test_nvrtc_compiles_every_kernel(rule, machine):
    for dtype in ("float32", "float64"):
        for name, operation in operations(rule).items():
            source = kernel_source(name, form_of(rule), operation, np.dtype(dtype), 0, 1)
            assert compile_source(source, machine).startswith(b"\x7fELF"), name


@needs_nvrtc
def test_what_nvrtc_says_is_told():
    with pytest.raises(BackendUnavailableError, match=r'(?s)sm_90.*"no_such_thing" is undefined.*install the newest'):
        compile_source("int x = no_such_thing;", "sm_90")


def test_without_nvrtc_the_remedy_is_told():
    code = script_path("cuda_runtime_without_nvrtc_the_remedy_is_told")
    done = run_python(code)
    assert "BackendUnavailableError" in done.stdout
    assert "pip install 'platoon-plugins[cuda]'" in done.stdout


@needs_nvrtc
def test_without_a_device_there_is_no_runtime():
    with pytest.raises(BackendUnavailableError, match="--center host"):
        CudaRuntime(10_000)


class Copied:
    """A parameter whose value on the device is a copy, as JAX has it; see `platoon_base.parameters.Parameter`."""

    name = "w"

    def __init__(self, array):
        self.array, self.given = array, []

    def borrow(self):
        return self.array.copy()

    def on_device(self):
        return OnProcessor(self.array.copy())

    def memory(self):
        return None

    def give_back(self, array):
        self.given.append(array)


def test_parameters_on_one_device_have_its_context():
    arrays = [np.ones((2, 3), "float32"), np.ones((), "float32")]
    one = Parameters([OnProcessor(a, 1) for a in arrays])
    assert (one.context.kind, one.context.ordinal) == (b"cuda", 1)
    assert [spec.shape for spec in one.layout.specs] == [(2, 3), ()]
    assert Parameters([OnProcessor(arrays[0], 0), OnProcessor(arrays[1], 1)]).context is None
    assert Parameters([OnProcessor(arrays[0]), arrays[1]]).context is None
    assert Parameters([OnProcessor(arrays[0][..., ::2])]).context is None


def test_values_are_assigned_to_scalars_on_devices_too():
    array = OnProcessor(np.ones((), "float32"))
    assign(array, np.float32(3))
    assert np.asarray(array) == 3


def test_copies_on_the_device_are_given_back():
    parameter = Copied(np.ones(3, "float32"))
    parameters = Parameters([parameter])
    arrays = parameters.borrow_on_device()
    arrays[0][...] = 2
    parameters.give_back(arrays)
    assert parameter.given == arrays
    assert (parameter.array == 1).all()


def test_only_arrays_that_stay_in_place_need_no_new_check():
    placed, copied = Parameters([OnProcessor(np.ones(3, "float32"))]), Parameters([Copied(np.ones(3, "float32"))])
    assert placed.borrow_on_device().like is placed.borrow_on_device().like is not None
    assert copied.borrow_on_device().like is not copied.borrow_on_device().like


def test_arrays_that_left_the_device_are_checked_anew():
    parameter = Copied(np.ones(3, "float32"))
    placed = [OnProcessor(parameter.array)]
    parameter.on_device = lambda: placed[0] if placed else None
    parameters = Parameters([parameter])
    assert parameters.borrow_on_device().like is not None
    placed.clear()
    assert parameters.borrow_on_device().like is None
