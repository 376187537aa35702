from function_preamble import T, function, momentum, np, theano
from gradients_here import labels, rank, rows, say_results, sent_bytes, worker

random = np.random.default_rng(rank)  # the first worker's values count
x, y = T.fmatrix("x"), T.ivector("y")
w, v = (theano.shared((random.standard_normal(shape) * 0.1).astype("f4")) for shape in ((64, 256), (256, 10)))
loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(T.tanh(T.dot(x, w)), v)), y).mean()
train = function([x, y], loss, momentum, params=[w, v])
before = sent_bytes()
for _ in range(4):
    for start in range(0, len(rows), 96):
        train(rows, labels, batch=slice(start, start + 96))
sent = sent_bytes() - before
cost = theano.function([x, y], loss)
say_results(cost(rows, labels), [w.get_value(), v.get_value()], sent)
worker.barrier("end")
