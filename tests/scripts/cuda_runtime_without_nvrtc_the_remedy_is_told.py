import sys

sys.modules["cuda.bindings"] = None
import platoon_base.devices.runtime  # noqa: F401, loads no pygpu
from platoon_base.devices.cuda import compile_source

try:
    compile_source("", "sm_90")
except Exception as exc:
    print(type(exc).__name__, exc)
assert "pygpu" not in sys.modules
