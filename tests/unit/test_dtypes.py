"""Each back end has what `platoon_base.dtypes` promises for it."""

import re
from pathlib import Path

import numpy as np
import pytest

import platoon_base
from platoon_base import dtypes
from platoon_base.centers.host_kernels import HAVE_FUSED, find_fused

HERE = Path(platoon_base.__file__).parent


@pytest.mark.base
def test_the_codes_of_collective_calls_in_c_have_the_order_of_the_names():
    text = (HERE / "_reductions.h").read_text()
    enum = re.search(r"enum \{ (FLOAT16[^}]*) \}", text).group(1).lower().split(", ")
    sizes = re.search(r"ITEMSIZE\[\] = \{(.*?)\}", text).group(1).split(", ")
    assert enum == list(dtypes.COLLECTIVE)
    assert list(map(int, sizes)) == [np.dtype(name).itemsize for name in enum]


@pytest.mark.base
@pytest.mark.skipif(not HAVE_FUSED, reason="needs the C extension: `make setup` builds it")
def test_the_rules_have_loops_in_c_for_these_types_alone():
    found = {name for name in dtypes.SHARED if hasattr(np, name) and find_fused("easgd", np.dtype(name))}
    assert found - {"longdouble", "float128"} == set(dtypes.C_TYPES)


@pytest.mark.base
def test_nccl_has_a_code_for_each_dtype():
    assert {*dtypes.COLLECTIVE, *dtypes.DEVICE_FLOATS} == set(dtypes.NCCL_CODES)
    assert len(set(dtypes.NCCL_CODES.values())) == len(dtypes.NCCL_CODES)


def test_torch_has_each_dtype():
    torch = pytest.importorskip("torch")
    sizes = {name: torch.zeros(1, dtype=getattr(torch, name)).element_size() for name in dtypes.NCCL_CODES}
    assert sizes == {name: 2 if name == "bfloat16" else np.dtype(name).itemsize for name in dtypes.NCCL_CODES}


def test_the_codes_of_xla_are_those_of_its_header():
    jaxlib = pytest.importorskip("jaxlib")
    text = (Path(jaxlib.__file__).parent / "include/xla/ffi/api/c_api.h").read_text()
    names = {"float16": "F16", "float32": "F32", "float64": "F64"}
    found = {name: int(re.search(rf"XLA_FFI_DataType_{code} = (\d+)", text).group(1)) for name, code in names.items()}
    assert found == dtypes.XLA_CODES
    assert list(found) == list(dtypes.FLOATS)


@pytest.mark.base
def test_only_float16_is_summed_in_another_dtype():
    other = [name for name in dtypes.COLLECTIVE if dtypes.sum_dtype(name) != np.dtype(name)]
    assert other == ["float16"]
    assert dtypes.sum_dtype("float16") == np.float32
