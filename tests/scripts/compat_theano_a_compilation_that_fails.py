from platoon_base import compat

compat.apply()
repaired = "from platoon_base import compat; compat.apply()\n"
import subprocess
import sys
import theano
import theano.tensor as T
from theano.gof import compilelock


class Broken(theano.Op):
    __props__ = ()

    def make_node(self, x):
        return theano.Apply(self, [x], [x.type()])

    def c_code(self, node, name, inputs, outputs, sub):
        return "this is no C;"

    def c_code_cache_version(self):
        return (1,)

    def perform(self, node, inputs, outputs):
        raise AssertionError


x = T.matrix("x")
for graph in (Broken()(x), Broken()(x) * 2 + T.exp(x.sum())):
    try:
        theano.function([x], graph)
    except Exception as exc:
        assert "no C" in str(exc) or "Compilation failed" in str(exc), exc
    else:
        raise SystemExit("compiled")
    assert compilelock.get_lock.n_lock == 0
other = "from theano.gof.compilelock import lock_ctx\nwith lock_ctx(): pass"
subprocess.run([sys.executable, "-c", repaired + other], check=True, timeout=60)
theano.function([x], T.exp(x) + 1)
print("good")
