"""Gives a worker a folder of its own for compiled OpenCL kernels; scripts import it before pygpu or Theano.

Two processes that compile a kernel into one folder at the same moment may load what is half written, and crash.
"""

import os
import sys

if os.environ.get("PLATOON_DEVICE", "").startswith("opencl"):
    os.environ["POCL_CACHE_DIR"] = os.path.join(sys.argv[1], "pocl" + os.environ["PLATOON_RANK"])
    os.makedirs(os.environ["POCL_CACHE_DIR"], exist_ok=True)
