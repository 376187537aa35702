"""The repair by which Theano pickles functions on devices: here on OpenCL on the CPU."""

import os
import subprocess
import sys

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.theano


@pytest.mark.slow
def test_a_function_on_a_device_is_pickled_with_the_name_of_its_context(opencl, tmp_path):
    env = {**os.environ, "POCL_CACHE_DIR": str(tmp_path)}
    env["THEANO_FLAGS"] = f"{env.get('THEANO_FLAGS', '')},device=opencl0:0,force_device=True,floatX=float32"
    command = [sys.executable, script_path("compat_theano_pickled_on_a_device")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
