"""The networks of benchmarks/learning_simulation.py, for many models at once, and the tasks that they learn.

Parameters of all models are rows of one tensor of shape (models, size).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from scripts.learning_tasks import TASKS, Network, Recurrent, Task, Transformer

Tensors = tuple[torch.Tensor, ...]


class Simulated:
    """A task of benchmarks/learning.py, and its network.

    Attributes
    ----------
    task : Task
    rates : tuple of float
        Learning rates of Adam that plain training tries.
    optimizer : {"adam", "sgd", "muon"}
        Of the workers; "sgd" has momentum 0.9, "muon" is Adam but for the hidden matrices.
    hidden : tuple of int
        Places of the hidden matrices in `shapes`.
    clip : float
        Largest norm of all gradients of a model together; 0 for none.
    shapes : tuple of tuple of int
        Of the parameters.
    """

    clip = 0.0
    hidden: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...]

    def __init__(self, task: Task, rates: tuple[float, ...], optimizer: str = "adam") -> None:
        self.task, self.rates, self.optimizer = task, rates, optimizer

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Cut parameters of shape (models, size) into the layers'."""
        parts = flat.split([math.prod(shape) for shape in self.shapes], dim=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes)]

    def initial(self, seed: int) -> torch.Tensor:
        """Return parameters of one model."""
        generator = torch.Generator().manual_seed(seed)
        drawn = [self.draw(place, torch.rand(shape, generator=generator)) for place, shape in enumerate(self.shapes)]
        return torch.cat([each.flatten() for each in drawn])

    def draw(self, place: int, uniform: torch.Tensor) -> torch.Tensor:
        """Return an initial parameter from random numbers between 0 and 1: those of the layer, by its place."""
        raise NotImplementedError

    def logits(self, flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return those of each model for its own rows, shape (models, predictions, classes)."""
        raise NotImplementedError

    def data(self, device: str) -> Tensors:
        """Return rows and classes to train on, rows and classes to validate on."""
        (x, y), (x_valid, y_valid) = self.task.data()
        return tuple(torch.as_tensor(each, device=device) for each in (x, *self.classes(y, x_valid, y_valid)))

    def classes(self, y: np.ndarray, x_valid: np.ndarray, y_valid: np.ndarray) -> tuple[np.ndarray, ...]:
        return y.argmax(1), x_valid, y_valid.argmax(1)

    def loss(self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the sum over the models of each one's mean cross-entropy."""
        found = self.logits(flat, x)
        total = F.cross_entropy(found.flatten(0, 1), y.flatten(), reduction="sum")
        return total / found.shape[1]

    def validate(self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, rows: int = 0, models: int = 64) -> list:
        """Return the accuracy of each model, or the bits for each prediction, in pieces that fit into memory."""
        rows, found = rows or 2000, []
        with torch.no_grad():
            for some in flat.split(models):
                total = torch.zeros(len(some), device=flat.device)
                for part, classes in zip(x.split(rows), y.split(rows)):
                    out = self.logits(some, part.expand(len(some), *part.shape))
                    total += self.score(out, classes.flatten().expand(len(some), -1))
                found += (total / y.numel()).tolist()
        return found

    def score(self, out: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Return the sum for each model of what is validated, from shapes (models, predictions, classes) and less."""
        if not self.task.lower:
            return (out.argmax(2) == classes).sum(1)
        bits = F.cross_entropy(out.flatten(0, 1), classes.flatten(), reduction="none") / math.log(2)
        return bits.view(classes.shape).sum(1)


class Perceptron(Simulated):
    """784-128-10 with relu: weights by Glorot and Bengio (2010), uniform; biases 0."""

    shapes = ((784, 128), (128,), (128, 10), (10,))

    def draw(self, place: int, uniform: torch.Tensor) -> torch.Tensor:
        return _glorot(uniform)

    def logits(self, flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        w1, b1, w2, b2 = self.views(flat)
        return torch.baddbmm(b2[:, None], torch.relu(torch.baddbmm(b1[:, None], x, w1)), w2)


class Convolutional(Simulated):
    """Two layers of 3x3 filters with relu and 2x2 max pooling, a dense layer; weights and biases as `Perceptron`'s."""

    def __init__(self, task: Task, rates: tuple[float, ...]) -> None:
        super().__init__(task, rates)
        net = task.network
        assert isinstance(net, Network)
        (one, two), (units,) = net.filters, net.dense
        kernels = (9, one), (one,), (9 * one, two), (two,)
        self.shapes = (*kernels, (25 * two, units), (units,), (units, net.classes), (net.classes,))

    def draw(self, place: int, uniform: torch.Tensor) -> torch.Tensor:
        if uniform.ndim == 2 and place in (0, 2):  # its outputs are counted at each place of the filter
            return (uniform * 2 - 1) * math.sqrt(6 / (uniform.shape[0] + 9 * uniform.shape[1]))
        return _glorot(uniform)

    def logits(self, flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        w1, b1, w2, b2, w3, b3, w4, b4 = self.views(flat)
        models, rows = x.shape[:2]
        seen = x.reshape(models, rows, 28, 28, 1)
        for weights, bias in ((w1, b1), (w2, b2)):
            patches = seen.unfold(2, 3, 1).unfold(3, 3, 1)  # (models, rows, height, width, channels, 3, 3)
            height, width = patches.shape[2:4]
            out = torch.baddbmm(bias[:, None], patches.flatten(4).flatten(1, 3), weights)
            out = torch.relu(out).view(models, rows, height, width, -1)
            out = out[:, :, : height // 2 * 2, : width // 2 * 2].unflatten(3, (-1, 2)).amax(4)
            seen = out.unflatten(2, (-1, 2)).amax(3)
        hidden = torch.relu(torch.baddbmm(b3[:, None], seen.flatten(2), w3))
        return torch.baddbmm(b4[:, None], hidden, w4)

    def validate(self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, rows: int = 0, models: int = 16) -> list:
        return super().validate(flat, x, y, rows or 1000, models)


class CharacterLstm(Simulated):
    """The LSTM of benchmarks/learning.py with Lasagne: peepholes, no forget bias, embedding and weights drawn alike."""

    clip = 5.0

    def __init__(self, task: Task, rates: tuple[float, ...]) -> None:
        super().__init__(task, rates)
        net = task.network
        assert isinstance(net, Recurrent)
        self.units = net.units
        gates = 4 * net.units
        recurrent = (net.embedding, gates), (net.units, gates), (gates,), (3, net.units)
        self.shapes = ((net.classes, net.embedding), *recurrent, (net.units, net.classes), (net.classes,))

    def draw(self, place: int, uniform: torch.Tensor) -> torch.Tensor:
        if place > 4:
            return _glorot(uniform)
        deviation = {0: 0.01, 3: 0.0}.get(place, 0.1)
        return deviation * torch.special.ndtri(uniform.clamp(1e-6, 1 - 1e-6))

    def classes(self, y: np.ndarray, x_valid: np.ndarray, y_valid: np.ndarray) -> tuple[np.ndarray, ...]:
        return y.astype("int64"), x_valid, y_valid.astype("int64")

    def logits(self, flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        embedding, w_in, w_hidden, bias, peep, w_out, b_out = self.views(flat)
        (models, rows, length), units = x.shape, self.units
        table = torch.baddbmm(bias[:, None], embedding, w_in).flatten(0, 1)
        first = torch.arange(models, device=x.device)[:, None, None] * embedding.shape[1]
        # Step by step through time: (length, models, rows, gates).
        steps = table[(x.long() + first).permute(2, 0, 1)]
        to_input, to_forget, to_output = peep[:, :, None].unbind(1)
        hidden = cell = flat.new_zeros(models, rows, units)
        found = []
        for t in range(length):
            gates = torch.baddbmm(steps[t], hidden, w_hidden)
            i, f, g, o = gates.split(units, dim=2)
            cell = torch.sigmoid(f + cell * to_forget) * cell + torch.sigmoid(i + cell * to_input) * torch.tanh(g)
            hidden = torch.sigmoid(o + cell * to_output) * torch.tanh(cell)
            found.append(hidden)
        out = torch.stack(found, dim=2).flatten(1, 2)
        return torch.baddbmm(b_out[:, None], out, w_out)

    def validate(self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, rows: int = 0, models: int = 64) -> list:
        return super().validate(flat, x, y, rows or 500, models)


class CharacterTransformer(Simulated):
    """Two blocks of causal attention with four heads and a relu layer four times as wide, normalized before each."""

    clip = 1.0
    heads = 4

    def __init__(self, task: Task, rates: tuple[float, ...], optimizer: str = "adam") -> None:
        super().__init__(task, rates, optimizer)
        net = task.network
        assert isinstance(net, Transformer)
        self.width, self.blocks = net.width, net.blocks
        w = net.width
        block = (w, 3 * w), (3 * w,), (w, w), (w,), (w, 4 * w), (4 * w,), (4 * w, w), (w,), (w,), (w,)
        self.shapes = ((net.classes, w), (net.length, w), *block * net.blocks, (w,), (w, net.classes), (net.classes,))
        inside = range(2, len(self.shapes) - 3)
        self.hidden = tuple(place for place in inside if len(self.shapes[place]) == 2)

    def draw(self, place: int, uniform: torch.Tensor) -> torch.Tensor:
        if place < 2:
            return 0.04 * (uniform - 0.5)
        return _glorot(uniform)  # gains of the normalizations are 1 more than their parameters

    def classes(self, y: np.ndarray, x_valid: np.ndarray, y_valid: np.ndarray) -> tuple[np.ndarray, ...]:
        return y.astype("int64"), x_valid, y_valid.astype("int64")

    def logits(self, flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        embedding, position, *parts, gain, w_out, b_out = self.views(flat)
        (models, rows, length), w = x.shape, self.width
        first = torch.arange(models, device=x.device)[:, None, None] * embedding.shape[1]
        h = embedding.flatten(0, 1)[(x.long() + first).flatten(1)] + position.repeat(1, rows, 1)
        for block in range(self.blocks):
            qkv, b_qkv, out, b_out_, up, b_up, down, b_down, g1, g2 = parts[block * 10 :][:10]
            found = torch.baddbmm(b_qkv[:, None], _normal(h, g1), qkv)
            q, k, v = found.view(models * rows, length, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(models, -1, w)
            h = h + torch.baddbmm(b_out_[:, None], mixed, out)
            h = h + torch.baddbmm(b_down[:, None], torch.relu(torch.baddbmm(b_up[:, None], _normal(h, g2), up)), down)
        return torch.baddbmm(b_out[:, None], _normal(h, gain), w_out)

    def validate(self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, rows: int = 0, models: int = 32) -> list:
        return super().validate(flat, x, y, rows or 500, models)


def _normal(h: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(h, h.shape[-1:]) * (1 + gain[:, None])


def _glorot(uniform: torch.Tensor) -> torch.Tensor:
    limit = math.sqrt(6 / sum(uniform.shape)) if uniform.ndim == 2 else 0.0
    return (uniform * 2 - 1) * limit


class Gradients:
    """The gradients of all models, as one graph of kernels where there is a GPU: an LSTM is thousands of small ones."""

    def __init__(self, network: Simulated) -> None:
        self.network = network
        self.replay: Callable[[], None] | None = None

    def __call__(self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if not flat.is_cuda:
            return self.of(flat.detach().requires_grad_(), x, y)
        if self.replay is None:
            self.capture(flat, x, y)
        assert self.replay is not None
        for place, value in zip(self.places, (flat, x, y)):
            place.detach().copy_(value)
        self.replay()
        return self.found

    def of(self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(self.network.loss(flat, x, y), flat)[0]

    def capture(self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
        self.places = flat.detach().clone().requires_grad_(), x.clone(), y.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # a graph must not be the first to ask for workspaces
                self.of(*self.places)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.found = self.of(*self.places)
        self.replay = graph.replay


NETWORKS: dict[str, Callable[[], Simulated]] = {
    "fashion-mnist": lambda: Perceptron(TASKS["fashion-mnist"], (0.0005, 0.001, 0.002, 0.004)),
    "fashion-mnist-sgd": lambda: Perceptron(TASKS["fashion-mnist-sgd"], TASKS["fashion-mnist-sgd"].rates, "sgd"),
    "fashion-mnist-conv": lambda: Convolutional(TASKS["fashion-mnist-conv"], TASKS["fashion-mnist-conv"].rates),
    "stdlib-transformer": lambda: CharacterTransformer(TASKS["stdlib-transformer"], TASKS["stdlib-transformer"].rates),
    "stdlib-transformer-muon": lambda: CharacterTransformer(
        TASKS["stdlib-transformer"], (*TASKS["stdlib-transformer"].rates, 0.016), "muon"
    ),
    **{
        name: lambda task=TASKS[name]: CharacterLstm(task, task.rates)  # type: ignore[misc]
        for name in ("stdlib-lstm", "stdlib-lstm-long")
    },
}
