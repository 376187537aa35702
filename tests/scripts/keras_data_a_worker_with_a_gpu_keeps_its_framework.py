import importlib.util
import os
import sys
from platoon_base import compat
from platoon_base.devices import isolation

os.environ.pop("CUDA_VISIBLE_DEVICES", None)
compat.apply()
isolation.keep_to("cuda1")
importlib.util.find_spec("jax")  # which imports nothing, and must not use the hook up
import keras

if keras.backend.backend() == "jax":
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("1,0,2,")  # only where there is a driver
    assert sys.modules["jax"].config.read("jax_cuda_visible_devices") == ("0" if first else "1")
if keras.backend.backend() == "torch" and sys.modules["torch"].cuda.device_count() > 1:
    assert sys.modules["torch"].cuda.current_device() == 1
