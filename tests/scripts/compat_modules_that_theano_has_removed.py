# ruff: noqa: F401 - it is the imports that are tested
from platoon_base import compat

compat.apply()
from theano.tensor.signal.downsample import max_pool_2d
import theano.tensor.signal.downsample as downsample
from theano.tensor.signal import downsample as again
from theano.compat.python2x import OrderedDict, defaultdict, izip
import collections

assert downsample is again and again.max_pool_2d is max_pool_2d
assert OrderedDict is collections.OrderedDict
