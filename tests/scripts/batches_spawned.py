import numpy as np
from platoon_base.data import load_ahead
from platoon_base.errors import ConfigurationError


def batches():
    assert "only_here" not in globals()
    for k in range(3):
        yield np.full(2, k)


if __name__ == "__main__":
    only_here = True
    print([x.tolist() for x in load_ahead(batches, start_method="spawn")])
    try:
        iter(load_ahead(lambda: batches(), start_method="spawn"))
    except ConfigurationError as exc:
        print(str(exc)[-22:])
