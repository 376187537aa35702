from platoon_base import compat

compat.apply()
import os
import theano
from theano.gof import cc

cache = cc.get_module_cache()
gone = os.path.join(theano.config.compiledir, "gone")
os.mkdir(gone)
listdir = os.listdir


def remove_then_list(path):
    if path == gone:
        os.rmdir(gone)
    return listdir(path)


os.listdir = remove_then_list
cache.refresh()
assert not os.path.exists(gone)
print("good")
