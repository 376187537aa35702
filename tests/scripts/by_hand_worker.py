import numpy
from platoon_base.platoon_api.channel import Worker
from platoon_base.platoon_api.param_sync import EASGD
import theano
from theano import tensor


def train(worker, seed, folder):
    rng = numpy.random.RandomState(seed)
    true = numpy.arange(4.0)
    w = theano.shared(rng.randn(4), name="w")
    b = theano.shared(rng.randn(), name="b")
    x, y = tensor.dmatrix("x"), tensor.dvector("y")
    cost = tensor.sqr(tensor.dot(x, w) + b - y).mean()
    f = theano.function([x, y], cost, updates=[(p, p - 0.1 * tensor.grad(cost, p)) for p in (w, b)])
    error = theano.function([x, y], cost)
    worker.init_shared_params([w, b], param_sync_rule=EASGD(0.5))
    print("Params init done", worker.global_rank)
    valid_x = numpy.random.RandomState(99).randn(50, 4)
    step = worker.send_req("next")
    best = None
    while step != "stop":
        if step == "train":
            for i in range(5):
                data = rng.randn(16, 4)
                f(data, data.dot(true) + 1)
            worker.sync_params(synchronous=True)
            worker.send_req("done", dict(train_len=5))
        if step == "valid":
            worker.copy_to_local()
            valid_err = float(error(valid_x, valid_x.dot(true) + 1))
            res = worker.send_req("pred_errors", dict(test_err=1.0, valid_err=valid_err))
            if res == "best":
                best = valid_err
        step = worker.send_req("next")
    numpy.savez(
        "%s/seen%d.npz" % (folder, worker.global_rank),
        w=w.get_value(),
        b=b.get_value(),
        best=best or 9,
        shared=worker.shared_params[0],
    )
    worker.close()


if __name__ == "__main__":
    parser = Worker.default_parser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder")
    args = parser.parse_args()
    train(Worker(**Worker.default_arguments(args)), args.seed, args.folder)
