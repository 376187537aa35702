"""The parameters can no longer be read as the worker leaves."""

import numpy as np

from platoon_base import connect
from platoon_base.rules import LocalSGD


class Parameter:
    name, dtype = "p", np.dtype("float32")

    def __init__(self):
        self.value, self.gone = np.zeros(3, "float32"), False

    def get_value(self, borrow=False, return_internal_type=False):
        if self.gone:
            raise RuntimeError("the context is gone")
        return self.value

    def set_value(self, value, borrow=False):
        self.value = np.array(value)


worker = connect()
parameter = Parameter()
worker.init_shared_params([parameter], LocalSGD(overlap=0.5))
worker.barrier("all share")
parameter.value += 1
worker.sync_params()
parameter.gone = True
worker.close()
