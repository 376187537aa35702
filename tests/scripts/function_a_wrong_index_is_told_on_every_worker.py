from function_preamble import ConfigurationError, PlatoonError, X, Y, adagrad, close, function, np
from function_preamble import ours, scatter

xs = scatter(X)
f = function([ours.x, ours.y], ours.loss)
g = function([], xs.sum(), reduce="sum", sliceable_shareds=[xs])
for call in (
    lambda: f(X, Y, batch=[3, 23, 5]),
    lambda: f(X, Y[:9]),
    lambda: f(X, Y, batch=[]),
    lambda: f(X),
    lambda: f(X, Y, batch_s=[1]),
    lambda: g(batch=[1]),
    lambda: g(batch_s=[99]),
    lambda: g(batch_s=[[0], [-99]]),
    lambda: g(batch_s=[[0]]),
    lambda: g(num_slices=0),
    lambda: f(X, Y, batch=24),
    lambda: g(batch_s=-1),
):
    try:
        call()
    except PlatoonError as exc:
        print("refused:", type(exc).__name__, exc)
train = function([ours.x, ours.y], ours.loss, adagrad, params=ours.params)
try:
    train(X, Y, num_slices=2)
except ConfigurationError as exc:
    print("refused:", type(exc).__name__, exc)
np.testing.assert_allclose(f(X, Y), np.square(X.dot(ours.values()[:3]) + ours.values()[3] - Y).mean(), **close)
np.testing.assert_allclose(g(), X.sum(), **close)
