import numpy as np

from keras_preamble import EASGD, data, dense, distribute, rank, worker
from platoon_base.errors import PlatoonError

model, (x, y) = dense((8 + rank, 3)), data(16)
try:
    model.fit(x, y, verbose=0, callbacks=distribute([], rule=EASGD()))
except PlatoonError:
    pass
else:
    raise SystemExit("models of two sizes were taken")
worker.init_shared_params([np.zeros(3)], EASGD())
try:
    dense().fit(x, y, verbose=0, callbacks=distribute([], rule=EASGD()))
except PlatoonError as error:
    assert "shares parameters by init_shared_params" in str(error), error
else:
    raise SystemExit("the script's parameters were released")
assert worker.advanced.shares
