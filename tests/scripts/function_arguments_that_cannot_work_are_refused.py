from function_preamble import ConfigurationError, X, adagrad, function, ours, scatter

for make in (
    lambda: function([ours.x, ours.y], ours.error, adagrad, params=ours.params),
    lambda: function([ours.x, ours.y], ours.loss, adagrad),
    lambda: function([ours.x, ours.y], ours.loss, [(3, 4)]),
    lambda: function([ours.x, ours.y], ours.loss, reduce="median"),
    lambda: function([ours.x, ours.y], ours.loss, reduce=["mean", "sum"]),
    lambda: function([ours.x], ours.x, sliceable_shareds=ours.w),
    lambda: function([ours.x], ours.x.sum(), broadcast=[ours.y]),
    lambda: scatter(X[:0]),
    lambda: function([ours.x], ours.x.sum(0), reduce="gather")(X),
):
    try:
        make()
    except ConfigurationError as exc:
        print("refused:", exc)
