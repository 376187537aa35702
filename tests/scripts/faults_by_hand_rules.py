import numpy

from by_hand_preamble import ParamSyncRule


class NoMaster(ParamSyncRule):
    def update_params(self, local_values):
        pass


class Nothing(ParamSyncRule):
    pass


class Fails(ParamSyncRule):
    def update_params(self, local_values, master_values):
        master_values[0] += 100
        local_values[0] += 100
        raise KeyError("in the rule")


class WrongShapes(ParamSyncRule):
    def theano_update(self, local_params):
        return lambda *masters: masters[0][:3]


class NoFunction(ParamSyncRule):
    def theano_update(self, local_params):
        pass


class NoUpdate(ParamSyncRule):
    def make_update_function(self, local_params):
        return 3


class OtherInputs(ParamSyncRule):
    def theano_update(self, local_params):
        return lambda: None


class Param:
    def __init__(self):
        self.value = numpy.ones(4)

    def get_value(self, borrow=False, return_internal_type=False):
        return self.value if borrow else self.value.copy()

    def set_value(self, value, borrow=False):
        self.value[...] = value


def attempt(call, *args):
    try:
        call(*args)
    except Exception as exc:
        print(type(exc).__name__, exc)
