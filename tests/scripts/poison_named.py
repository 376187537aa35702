from platoon_base.errors import NonFiniteError


class Variable:
    def __init__(self, name, value):
        self.name, self.value = name, value

    def get_value(self, borrow=False, return_internal_type=False):
        return self.value if borrow else self.value.copy()

    def set_value(self, value, borrow=False):
        self.value = value


def refusal(call, *args):
    try:
        call(*args)
    except NonFiniteError as error:
        return str(error)
    raise AssertionError("taken")
