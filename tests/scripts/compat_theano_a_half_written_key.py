from platoon_base import compat

compat.apply()
import os
import pickle
import theano
from theano.gof import cmodule

before = os.path.join(theano.config.compiledir, "key.pkl")
data = cmodule.KeyData({(1, "key")}, "hash", before, "entry")
data.save_pkl()


class Killed(BaseException):
    pass


class Deadly:
    def __reduce__(self):
        raise Killed


data.keys = [bytes(1 << 20), Deadly()]
try:
    data.save_pkl()
except Killed:
    print(pickle.load(open(before, "rb")).keys)
