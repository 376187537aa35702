"""A variable as those of frameworks are, around an array."""

import numpy as np


class Variable:
    def __init__(self, name, value):
        self.name, self.value = name, np.asanyarray(value)

    def get_value(self, borrow=False, return_internal_type=False):
        return self.value if borrow else self.value.copy()

    def set_value(self, value, borrow=False):
        self.value = value
