"""One training of `benchmarks/batch_normalization.py` with Lasagne, Blocks or a loop of torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from platoon_base import connect

BATCH, HIDDEN, MOMENTUM, PERIOD = 32, 128, 0.99, 10
mode, seed, epochs, out, framework = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5]
images, labels = load_digits(return_X_y=True)
x, x_valid, y, y_valid = train_test_split((images / 16).astype("float32"), labels, test_size=0.25, random_state=0)
worker = connect()
found: list[tuple[float, float]] = []


def note(logged: Any, running: Any, get: Callable[..., Any], put: Callable[..., Any], of_batch: Any, test: Any) -> None:
    """Record an accuracy, and the one with statistics of the whole training data; put the running ones back."""
    kept = [np.array(get(variable)) for variable in running]
    # Twice, as Blocks computes the statistics of its second layer with the running ones of the first.
    for _ in range(2):
        batches = [of_batch(x[start : start + BATCH]) for start in range(0, len(x) - BATCH + 1, BATCH)]
        for variable, values in zip(running, zip(*batches)):
            put(variable, np.mean(values, axis=0).astype("float32"))
    found.append((float(logged), float(test())))
    for variable, value in zip(running, kept):
        put(variable, value)


def train_torch() -> None:
    """Train a loop of torch."""
    import torch
    from torch import nn

    from platoon_base.torch_loops import GradientAverage, average_buffers

    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(HIDDEN, momentum=1 - MOMENTUM)
    model = nn.Sequential(nn.Linear(64, HIDDEN, bias=False), norm, nn.ReLU(), nn.Linear(HIDDEN, 10))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    rows, classes, rows_valid, classes_valid = map(torch.from_numpy, (x, y, x_valid, y_valid))
    average = GradientAverage(worker, model) if mode == "sync" else None
    if average is None:
        worker.init_shared_params(model.named_parameters())
        average_buffers(worker, model)

    def accuracy() -> float:
        answers = model.eval()(rows_valid).argmax(1)
        model.train()
        return float((answers == classes_valid).float().mean())

    def of_batch(batch: Any) -> Any:
        seen = model[0](torch.from_numpy(batch)).detach()
        return seen.mean(0).numpy(), seen.var(0).numpy()

    def test() -> None:
        average_buffers(worker, model)
        running = norm.running_mean, norm.running_var
        note(accuracy(), running, torch.Tensor.numpy, lambda v, a: v.copy_(torch.tensor(a)), of_batch, accuracy)

    for epoch in range(1, epochs + 1):
        shard = worker.shard(len(x), shuffle=True, epoch=epoch)[: len(x) // worker.global_size]
        for step in range(len(shard) // BATCH):
            batch = torch.as_tensor(np.array(shard[step * BATCH : (step + 1) * BATCH]))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows[batch]), classes[batch]).backward()
            if average is not None:
                average(len(batch))
            optimizer.step()
            worker.progress(steps=1)
            if average is None and step % PERIOD == PERIOD - 1:
                worker.sync_params()
        if average is not None:
            test()
            continue
        worker.sync_params(whole=True)
        worker.barrier()
        with worker.center_params():
            test()


def train_lasagne() -> None:
    """Train with running statistics that are written by hand, as Lasagne's BatchNormLayer has them."""
    from platoon_plugins.lasagne import evaluate, finish_training, iterate_minibatches, prepare

    import lasagne  # isort: skip
    import theano
    import theano.tensor as T
    from lasagne.layers import DenseLayer, InputLayer, get_output

    lasagne.random.set_rng(np.random.RandomState(seed))
    given, target = T.matrix(), T.ivector()
    hidden = DenseLayer(InputLayer((None, 64), given), HIDDEN, b=None, nonlinearity=None)
    last = DenseLayer(InputLayer((None, HIDDEN)), 10, nonlinearity=lasagne.nonlinearities.softmax)
    running = [theano.shared(np.full(HIDDEN, value, "float32")) for value in (0, 1)]
    scale, shift = (theano.shared(np.full(HIDDEN, value, "float32")) for value in (1, 0))
    seen = get_output(hidden)
    now = seen.mean(axis=0), seen.var(axis=0)

    def answers(mean: Any, variance: Any) -> Any:
        return get_output(last, T.nnet.relu((seen - mean) / T.sqrt(variance + 1e-4) * scale + shift))

    clones = [variable.clone() for variable in running]
    for clone, value in zip(clones, now):
        clone.default_update = MOMENTUM * clone + (1 - MOMENTUM) * value
    trained = answers(*(value + 0 * clone for value, clone in zip(now, clones)))
    loss = lasagne.objectives.categorical_crossentropy(trained, target).mean()
    params = [*hidden.get_params(), scale, shift, *last.get_params()]
    updates = prepare(lasagne.updates.adam, loss, params, learning_rate=2e-3, mode=mode)
    train = theano.function([given, target], loss, updates=updates)
    right = theano.function([given, target], T.eq(answers(*running).argmax(axis=1), target).mean())
    of_batch = theano.function([given], now)
    data, valid = (x, y.astype("int32")), (x_valid, y_valid.astype("int32"))
    for epoch in range(1, epochs + 1):
        for batch in iterate_minibatches(*data, BATCH, shuffle=True, epoch=epoch, uneven="drop"):
            train(*batch)
        logged = evaluate(right, *valid, batch_size=len(x_valid))
        several = mode == "async" and worker.global_size > 1
        with worker.center_params() if several else worker.validating():
            note(logged, running, lambda v: v.get_value(), lambda v, a: v.set_value(a), of_batch, lambda: right(*valid))
    finish_training()


def train_blocks() -> None:
    """Train Blocks' BatchNormalizedMLP."""
    from platoon_plugins.blocks import prepare

    import theano  # isort: skip
    import theano.tensor as T
    from blocks.algorithms import Adam, GradientDescent
    from blocks.bricks import BatchNormalizedMLP, Rectifier, Softmax
    from blocks.bricks.cost import CategoricalCrossEntropy, MisclassificationRate
    from blocks.extensions import FinishAfter, SimpleExtension
    from blocks.extensions.monitoring import DataStreamMonitoring
    from blocks.graph import ComputationGraph, apply_batch_normalization, get_batch_normalization_updates
    from blocks.initialization import Constant, IsotropicGaussian
    from blocks.main_loop import MainLoop
    from blocks.model import Model
    from fuel.datasets import IndexableDataset
    from fuel.schemes import SequentialScheme, ShuffledScheme
    from fuel.streams import DataStream

    given, target = T.matrix("features"), T.lmatrix("targets")
    first = {"weights_init": IsotropicGaussian(0.1), "biases_init": Constant(0), "seed": seed}
    mlp = BatchNormalizedMLP([Rectifier(), Softmax()], [64, HIDDEN, 10], **first)
    mlp.initialize()
    probabilities = mlp.apply(given)
    cost = CategoricalCrossEntropy().apply(target.flatten(), probabilities).copy(name="cost")
    error = MisclassificationRate().apply(target.flatten(), probabilities).copy(name="error")
    graph = ComputationGraph(apply_batch_normalization(ComputationGraph([cost])).outputs)
    algorithm = GradientDescent(cost=graph.outputs[0], parameters=graph.parameters, step_rule=Adam(2e-3))
    updates = get_batch_normalization_updates(graph)
    algorithm.add_updates([(p, MOMENTUM * p + (1 - MOMENTUM) * value) for p, value in updates])
    of_batch = theano.function([given], [value for _, value in updates])
    wrong = theano.function([given, target], error)
    columns, columns_valid = y[:, None], y_valid[:, None]

    def stream(rows: Any, targets: Any, scheme: Any) -> Any:
        data = IndexableDataset({"features": rows, "targets": targets})
        return DataStream(data, iteration_scheme=scheme(len(rows), BATCH))

    class Refreshed(SimpleExtension):
        def do(self, which: str, *args: Any) -> None:
            logged = 1 - float(self.main_loop.log.current_row["valid_error"])
            running, test = [p for p, _ in updates], lambda: 1 - wrong(x_valid, columns_valid)
            note(logged, running, lambda v: v.get_value(), lambda v, a: v.set_value(a), of_batch, test)

    valid = DataStreamMonitoring([error], stream(x_valid, columns_valid, SequentialScheme), prefix="valid")
    extensions = [valid, Refreshed(after_epoch=True), FinishAfter(after_n_epochs=epochs)]
    np.random.seed(seed)
    loop = MainLoop(algorithm, stream(x, columns, ShuffledScheme), model=Model(cost), extensions=extensions)
    prepare(loop, mode=mode).run()


{"lasagne": train_lasagne, "blocks": train_blocks, "torch": train_torch}[framework]()
if worker.is_leader:
    out.write_text(json.dumps(found))
