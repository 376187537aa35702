import numpy as np
from platoon_base import connect


class Variable:
    def __init__(self, name, value):
        self.name, self.value = name, np.asarray(value)

    def get_value(self, borrow=False, return_internal_type=False):
        return self.value if borrow else self.value.copy()

    def set_value(self, value, borrow=False):
        self.value = value


worker = connect()
rank = worker.global_rank
