from platoon_base import compat

compat.apply()
import numpy
import theano
import lasagne
import theano.tensor as T

x = T.vector("x")
sums, _ = theano.scan(lambda a, total: a + total, sequences=x, outputs_info=T.zeros_like(x[0]))
f = theano.function([x], sums)
assert (f(numpy.arange(5).astype(theano.config.floatX)) == [0, 1, 3, 6, 10]).all()
image = T.tensor4("image")
pooled = lasagne.layers.MaxPool2DLayer(lasagne.layers.InputLayer((1, 1, 2, 2), image), 2)
g = theano.function([image], lasagne.layers.get_output(pooled))
assert g(numpy.arange(4).reshape(1, 1, 2, 2).astype(theano.config.floatX)).item() == 3
