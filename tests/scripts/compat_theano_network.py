# ruff: noqa: F401 - for the lines that tests add
import json
from theano.gof import cmodule

compiled = []


def counted(module_name, *args, compile_str=cmodule.GCC_compiler.compile_str, **kwargs):
    compiled.append(module_name)
    return compile_str(module_name, *args, **kwargs)


cmodule.GCC_compiler.compile_str = staticmethod(counted)

import numpy as np
import theano
import theano.tensor as T

x, w = T.matrix("x"), theano.shared(np.linspace(-1, 1, 6).reshape(2, 3), "w")
b = theano.shared(np.zeros(3), "b")
loss = -T.log(T.nnet.softmax(T.dot(x, w) + b))[:, 0].mean()
step = theano.function([x], loss, updates=[(w, w - T.grad(loss, w))])
losses = [float(step(np.array([[1.0, 2.0], [3.0, 4.0]]))).hex() for _ in range(3)]
print(json.dumps({"compiled": compiled, "losses": losses, "w": [float(v).hex() for v in w.get_value().ravel()]}))
