"""The training of a prepared loop of PyTorch: what happens at its batches, passes and steps."""

from __future__ import annotations

import collections
import functools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from platoon_base.errors import ConfigurationError
from platoon_base.rules import prepared_rule, rule_for_loop, shares_moments
from platoon_base.torch_loops.gradients import GradientAverage, Rhythm
from platoon_base.torch_loops.loaders import Part
from platoon_base.torch_loops.running_stats import RunningStats
from platoon_base.torch_loops.state import (
    all_named,
    average_buffers,
    found_moments,
    have_trained,
    parameters_of,
    tensors_beside,
)
from platoon_base.torch_loops.watching import UNSCALED, untraced, watch
from platoon_base.worker import BatchSizes, Fit, State, Worker, agree, passes_before, warn_if_alike, warn_once

Tensor = Any

_SHOW_EACH_S = 1.0  # Reading a loss waits for the device.
_STEPS_UNTIL_SHARED = 10


class Pass:
    """One pass over a prepared loader; ``trained`` once a backward pass followed a batch."""

    def __init__(self, part: Part) -> None:
        self.part, self.trained = part, False
        self.batches = self.rows = 0
        self.sizes = BatchSizes()
        self.scheduled: dict[int, tuple[int, int]] = {}  # Batches per step, and steps made, of each scheduler.
        self.steps: collections.Counter[int] = collections.Counter()  # Steps of each optimizer.


class Loop:
    """The training of a single launched worker, which only reports its progress."""

    mode = ""

    def __init__(self, worker: Worker, settings: Any = ()) -> None:
        self.worker = worker
        self.models: list[Any] = []
        self.averaged: list[Any] = []  # Models of class AveragedModel.
        self.optimizers: list[Any] = []
        before = current()
        # Only the first training of a script is saved.
        self.loaders, self.epoch = 0, passes_before(worker) if before is None else 0
        self.begun = self._closed = False
        self.settings = settings
        self._trained: list[Callable[[], bool]] = []  # Of the objects of each `prepare`.
        trained = self._trained
        later = before is not None and before.intent.used  # Of which a part may only be evaluated.
        needed = lambda: not later or any(each() for each in trained)  # noqa: E731
        self.intent: Any = worker.advanced.intend("prepare", _NEVER, needed)
        self._open: list[Pass] = []
        self._fresh: list[Pass] = []
        self.sizes: BatchSizes | None = None  # Of the latest pass.
        self._rows, self._read, self._counted = 1.0, False, False
        self._loss, self._weight, self._show_at = 0.0 * torch.zeros(()).double(), 0.0, 0.0
        self._handles: list[Any] = []
        self.backward_begins = untraced(self._before_backward)
        self.backward_ends = untraced(self._after_backward)
        self._group_of: dict[int, int] = {}  # The group of each parameter that prepared objects train.
        self._touched: set[int] = set()  # Groups with new gradients.
        self._frozen: list[tuple[Any, Tensor]] = []  # Parameters without gradients, with their group.
        if worker.global_rank:  # Other masks of Dropout than on the first worker.
            seed = worker.shard_seed
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed % 2**63)

    def add(self, models: Sequence[Any], averaged: Sequence[Any], optimizers: Sequence[Any]) -> None:
        self.models += [each for each in models if not _among(each, self.models)]
        self.averaged += [each for each in averaged if not _among(each, self.averaged)]
        for optimizer in [each for each in optimizers if not _among(each, self.optimizers)]:
            self.optimizers.append(optimizer)
            optimizer.register_step_pre_hook(untraced(self.before_step))
            self._handles.append(optimizer.register_step_post_hook(untraced(self.after_step)))
        self._trained.append(have_trained([p for _, p in all_named(models, optimizers)]))
        of_models = {id(parameter) for each in self.models for parameter in each.parameters()}
        beside = [p for each in optimizers for p in parameters_of(each) if id(p) not in of_models]
        for group in [*models, beside]:
            self._watch_gradients(group, group if group is beside else list(group.parameters()))

    def _watch_gradients(self, group: Any, parameters: Sequence[Any]) -> None:
        self._frozen += [(group, p) for p in parameters if not p.requires_grad]
        parameters = [p for p in parameters if p.requires_grad and id(p) not in self._group_of]
        if not parameters:
            return
        number = self._new_group(group)
        touch = untraced(functools.partial(_touch, self._touched, number))
        for parameter in parameters:
            self._group_of[id(parameter)] = number
            self._handles.append(parameter.register_post_accumulate_grad_hook(touch))

    def _watch_unfrozen(self) -> None:
        """Watch parameters that were frozen when `prepare` got them."""
        found = [each for each in self._frozen if each[1].requires_grad]
        if found:
            self._frozen = [each for each in self._frozen if not each[1].requires_grad]
            for group in {id(group): group for group, _ in found}.values():
                parameters = [p for other, p in found if other is group]
                self._watch_gradients(group, parameters)
                self._touched |= {self._group_of[id(p)] for p in parameters}
            self._find_users()

    def _new_group(self, group: Any) -> int:
        """Return the number of a model, or of parameters of optimizers beside the models."""
        return 0

    def _find_users(self) -> None:
        """Find the optimizers of each group."""

    def close(self) -> None:
        """Remove the hooks; another loop begins."""
        self._closed = True
        for handle in self._handles:
            handle.remove()

    # Passes over the loaders.

    def draws(self, one: Pass, rows: int) -> None:
        if one not in self._fresh:
            self._fresh.append(one)
        self._rows, self._read, self._counted = float(rows), True, False
        self.sizes = one.sizes
        self.sizes.add(rows)
        one.batches += 1
        one.rows += rows
        self.worker.progress()

    def ends(self, one: Pass) -> None:
        """Report the mean loss of the pass, if it was one of training."""
        if not one.trained:
            return
        loss, weight = self._loss.item(), self._weight
        self._loss, self._weight = 0.0 * self._loss, 0.0
        mean = self._mean_of_all(loss, weight) if weight else float("nan")
        self.pass_ends(one, mean)
        if self.worker.is_leader:
            self.worker.report({**({"loss": mean} if weight else {}), "trained": self.describe()})

    def _mean_of_all(self, loss: float, weight: float) -> float:
        """Return the mean loss of all workers; warn if their learning rates differ."""
        rate = sum(float(group.get("lr", 0.0)) for each in self.optimizers for group in each.param_groups)
        means = self.worker.reduce_metrics({"loss": (loss, weight), "learning rate": (rate, 1.0)})
        if abs(rate - means["learning rate"]) > 1e-6 * abs(rate):
            warn_once(
                "the learning rates of the workers differ: pass schedulers such as ReduceLROnPlateau to prepare, which "
                "gives them the mean loss of all"
            )
        return means["loss"]

    def pass_ends(self, one: Pass, loss: float) -> None:
        """Make the models equal on all workers."""

    def describe(self) -> str:
        names = [f"{type(each).__name__} of {sum(p.numel() for p in each.parameters()):,}" for each in self.models]
        by = [type(each).__name__ for each in self.optimizers]
        epochs = f"{self.epoch} epoch{'s' * (self.epoch != 1)}" if self.epoch else ""
        return ", ".join(filter(None, [*names, *by, epochs, self.mode]))

    def steps_of(self, scheduler: Any) -> int:
        """Return how often a scheduler steps now.

        Within a pass of training it is read at the job's step: as one process makes it in this part
        of the pass, with as many batches from step to step.
        """
        one = next((one for one in self._open if one.trained), None)
        if one is None or not one.part.divides:
            return 1
        whole, own = one.part.whole, one.part.count
        once = one.batches == own and one.steps[id(scheduler.optimizer)] > 1
        if once and id(scheduler) not in one.scheduled:  # It steps once a pass, at the last batch.
            return 1
        every, done = one.scheduled.get(id(scheduler), (one.batches, 0))
        made = one.batches * (whole / own if whole and own else self.worker.global_size)
        due = max(done, math.ceil(made / every - 1e-6))
        one.scheduled[id(scheduler)] = every, due
        return due - done

    # Steps.

    def _after_backward(self, tensors: Any) -> None:
        """Process a backward pass, unless it was that of other models."""
        self._watch_unfrozen()
        touched = sorted(self._touched)
        self._touched.clear()
        if not touched:
            return
        if not self.begun:
            self._begin()
        self.begun = True
        # A pass that has ended was an evaluation, unless the script keeps batches and none is open.
        fresh = [one for one in self._fresh if one in self._open] or self._fresh
        new = [one for one in fresh if not one.trained]
        for one in fresh:
            one.trained = one.part.trains = True
        self._fresh.clear()
        if new:
            self.epoch += 1
            self.worker.advanced.announce(epoch=self.epoch, epoch_steps=new[0].part.count)
        self._add_loss(tensors)
        if not self._counted and (self._read or not self.optimizers):
            self._counted = self._read
            self.worker.advanced.count_step()
        self.gradients_come(touched)

    def _begin(self) -> None:
        if self.worker.is_leader:
            self.worker.report({"trained": self.describe()})
        if self.loaders and not self._read:
            warn_once(
                "this loop trains without a batch of the DataLoaders that prepare returned, so "
                "each worker trains on all rows: use its results, model, optimizer, loader = "
                "prepare(model, optimizer, loader)"
            )

    def gradients_come(self, groups: Sequence[int]) -> None:
        """Process new gradients of some groups of parameters."""

    def _add_loss(self, tensors: Any) -> None:
        root = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        loss = getattr(root, UNSCALED, root)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or loss.is_complex():
            return
        loss = loss.detach().reshape(()).double()
        self._loss = self._loss.to(loss.device) + loss * self._rows
        self._weight += self._rows
        if time.monotonic() >= self._show_at:
            self._show_at = time.monotonic() + _SHOW_EACH_S
            self.worker.progress(loss=loss.item())

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Process the begin of ``optimizer.step()``; return other arguments for it, or None."""
        loop = current()
        if self._closed and not (loop is not None and _among(optimizer, loop.optimizers)):
            raise ConfigurationError(
                f"got a step of {type(optimizer).__name__}, whose training another prepare has "
                "ended: pass all models and optimizers of a loop to prepare before its first step"
            )

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for one in self._open:
            one.steps[id(optimizer)] += 1
        if not self._read and optimizer is self.optimizers[0]:
            self.worker.advanced.count_step()

    def _before_backward(self) -> None:
        """Process the begin of a backward pass."""

    def before_use(self, optimizer: Any) -> None:
        """Prepare the gradients of an optimizer, which a GradScaler is about to look at."""

    def before_clipping(self, gradients: Sequence[Tensor]) -> None:
        """Prepare gradients that torch is about to clip."""

    def switches(self, training: bool) -> None:
        """React to ``train()`` and ``eval()`` of a model."""


class SyncLoop(Loop):
    """Averages the gradients of each backward pass."""

    mode = "sync"

    def __init__(self, worker: Worker, settings: Any) -> None:
        super().__init__(worker, settings)
        self._averages: list[GradientAverage] = []
        self._groups: list[tuple[Any, list[Any]]] = []  # What they average, and its parameters.
        self._users: list[set[int]] = []  # The optimizers of each group.
        self._averaged_for: set[int] = set()  # Optimizers whose gradients are averaged.
        self._rhythms: dict[int, Rhythm] = collections.defaultdict(Rhythm)
        self._accumulates: set[int] = set()  # Groups with gradients that are not averaged yet.
        self._marks: dict[int, list[tuple[int, int]]] = {}  # Of the gradients after the latest backward pass.
        self._compared = False

    def add(self, models: Sequence[Any], averaged: Sequence[Any], optimizers: Sequence[Any]) -> None:
        super().add(models, averaged, optimizers)
        self._find_users()

    def _find_users(self) -> None:
        self._users = [set() for _ in self._averages]
        for optimizer in self.optimizers:
            for parameter in parameters_of(optimizer):
                if id(parameter) in self._group_of:
                    self._users[self._group_of[id(parameter)]].add(id(optimizer))

    def _new_group(self, group: Any) -> int:
        for number, (other, tensors) in enumerate(self._groups):
            if other is group:  # With parameters unfrozen since; buffers differ within a pass.
                self._averages[number] = GradientAverage(self.worker, tensors, intent=self.intent)
                return number
        if isinstance(group, torch.nn.Module):
            averaged, tensors = group, list(group.named_parameters())
        else:
            averaged = tensors = [p for p in group if id(p) not in self._group_of]
        self._groups.append((group, tensors))
        self._averages.append(GradientAverage(self.worker, averaged, intent=self.intent))
        return len(self._averages) - 1

    def gradients_come(self, groups: Sequence[int]) -> None:
        for number in groups:
            if self._rhythms[number].more_come() and self._rows_are_equal():
                self._accumulates.add(number)
            else:
                self._average_now(number)
            self._marks[number] = self._mark(number)

    def _mark(self, number: int) -> list[tuple[int, int]]:
        found = [parameter.grad for parameter in self._averages[number].parameters]
        return [(0, 0) if gradient is None else (id(gradient), gradient._version) for gradient in found]

    def _before_backward(self) -> None:
        for number in list(self._marks):
            self._notice_changes(number)

    def _notice_changes(self, number: int) -> None:
        """Average each backward pass if the script changes gradients between those of one step."""
        before, now = self._marks.pop(number, None), self._mark(number)
        if before is not None and any(new != old and new[0] for new, old in zip(now, before)):
            self._rhythms[number].varies = True
            if number in self._accumulates:
                warn_once(
                    "the gradients were changed before the workers had averaged them, so each changed "
                    "its own: clip with torch's functions, or accumulate equally many batches for each step"
                )

    def _rows_are_equal(self) -> bool:
        """Return whether all workers had equal batches since the latest average, and will until the next pass."""
        # Only the last batches of a pass differ.
        return all(
            one.part.count is not None
            and not one.part.iterable
            and bool(one.part.batch_size)
            and one.batches < one.part.count - 1
            for one in self._open
            if one.trained
        )

    def before_use(self, optimizer: Any) -> None:
        """Average the gradients of an optimizer that accumulate."""
        for number in sorted(self._accumulates):
            if id(optimizer) in self._users[number]:
                self._average_now(number)

    def before_clipping(self, gradients: Sequence[Tensor]) -> None:
        clipped = set(map(id, gradients)) if self._accumulates else set()
        for number in sorted(self._accumulates):
            if any(id(parameter.grad) in clipped for parameter in self._averages[number].parameters):
                self._average_now(number)

    def _average_now(self, number: int) -> None:
        average = self._averages[number]
        if not self._compared:
            self._compared = True
            dense = [p.grad for p in average.parameters if p.grad is not None and p.grad.layout is torch.strided]
            warn_if_alike(self.worker, (gradient.detach().float().cpu().numpy() for gradient in dense))
        average.average(self._rows)
        self._accumulates.discard(number)
        self._averaged_for |= self._users[number]

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        super().before_step(optimizer, args, kwargs)
        closure = _closure_of(args, kwargs)
        if closure is not None:
            for number, users in enumerate(self._users):
                self._rhythms[number].varies |= id(optimizer) in users
            return args[:1], {"closure": functools.partial(self._mean_of, closure)}
        new = [p for p in parameters_of(optimizer) if p.requires_grad and id(p) not in self._group_of]
        if new:  # Of add_param_group.
            self._watch_gradients(new, new)
            self._find_users()
            self._average_now(self._group_of[id(new[0])])
        own = [number for number, users in enumerate(self._users) if id(optimizer) in users]
        for number in self._accumulates.intersection(own):
            self._notice_changes(number)
        self.before_use(optimizer)
        if id(optimizer) not in self._averaged_for:  # Gradients that no backward pass has made.
            for number in own:
                self._average_now(number)
        return None

    def _mean_of(self, closure: Any) -> Any:
        """Return the loss over the rows of all workers, so that all make the same steps."""
        loss = closure()
        if loss is None:
            return None
        number = loss.item() if isinstance(loss, torch.Tensor) else loss
        mean = self.worker.reduce_metrics({"loss": (number * self._rows, self._rows)})["loss"]
        return loss.detach().new_tensor(mean) if isinstance(loss, torch.Tensor) else mean

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        super().after_step(optimizer, args, kwargs)
        self._averaged_for.discard(id(optimizer))
        rest = any(one.batches == one.part.count for one in self._open if one.trained)
        for number, users in enumerate(self._users):
            if id(optimizer) in users:
                self._rhythms[number].steps(rest)
                self._marks.pop(number, None)

    def pass_ends(self, one: Pass, loss: float) -> None:
        for model in [*self.models, *self.averaged]:
            average_buffers(self.worker, model, one.rows)


class AsyncLoop(Loop):
    """Synchronizes the parameters with a center, after steps of the optimizers."""

    mode = "async"

    def __init__(self, worker: Worker, settings: Any) -> None:
        super().__init__(worker, settings)
        self._given, (self._sync_every, _, self._on_nonfinite) = prepared_rule(*settings[:4]), settings[2:]
        self.fit = _Fit(worker, self)
        self._stepped: dict[int, int] = {}
        self._shared_groups: dict[int, int] = {}  # How many groups of each optimizer are shared.
        self._filled: list[Any] = []
        self._last: Any = None  # The optimizer after whose steps the workers synchronize.
        self._evaluates = False  # A model was switched to eval(), and no backward pass followed.

    def add(self, models: Sequence[Any], averaged: Sequence[Any], optimizers: Sequence[Any]) -> None:
        super().add(models, averaged, optimizers)
        for model in models:
            RunningStats(model, 1.0).keep()

    def close(self) -> None:
        super().close()
        self.fit.leave(keep=True)  # The next training begins with the center's values.
        if self.fit.rule is not None:
            self.worker.release_shared_params()

    def gradients_come(self, groups: Sequence[int]) -> None:
        if not self.optimizers:
            raise ConfigurationError(
                'got no optimizer, and with mode="async" workers synchronize after its steps: '
                'pass it to prepare, or pass mode="sync" to average gradients'
            )
        self._evaluates = False
        self.fit.leave()

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        super().before_step(optimizer, args, kwargs)
        self.fit.leave()
        if self.fit.rule is not None and len(optimizer.param_groups) > self._shared_groups.get(id(optimizer), math.inf):
            raise ConfigurationError(
                "got a group of parameters in the middle of a pass, and those of prepare are shared "
                "already: add it between passes over the loader"
            )
        if self.fit.rule is None and id(optimizer) not in self._stepped and _closure_of(args, kwargs) is None:
            # The optimizer then makes the moments of all parameters, which are shared.
            self._filled = [p for p in parameters_of(optimizer) if p.requires_grad and p.grad is None]
            for parameter in self._filled:
                parameter.grad = torch.zeros_like(parameter)
        return None

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        super().after_step(optimizer, args, kwargs)
        for parameter in self._filled:
            parameter.grad = None
        self._filled = []
        self._stepped[id(optimizer)] = steps = self._stepped.get(id(optimizer), 0) + 1
        if self.fit.rule is None:
            if len(self._stepped) == len(self.optimizers) or steps >= _STEPS_UNTIL_SHARED:
                self._last = optimizer
                self._share()
        elif optimizer is self._last:
            self.fit.step()

    def _share(self) -> None:
        parameters = all_named(self.models, self.optimizers)
        dtypes = [str(p.dtype).removeprefix("torch.") for _, p in parameters]
        (rule, period), moments = rule_for_loop(self._given, self._sync_every, dtypes), None
        if shares_moments(rule):
            moments = [moment for each in self.optimizers for moment in found_moments(each)[0]]
        self.fit.bind()
        self.worker.init_shared_params(parameters, rule, moments=moments, on_nonfinite=self._on_nonfinite)
        self.fit.begin(rule, period)
        self._shared_groups = {id(each): len(each.param_groups) for each in self.optimizers}
        self.intent.used = True

    def draws(self, one: Pass, rows: int) -> None:
        super().draws(one, rows)
        if one.part.trains and torch.is_grad_enabled() and not self._evaluates:
            self.fit.leave()

    def pass_ends(self, one: Pass, loss: float) -> None:
        """Let all workers have the center, as far as all have trained."""
        if self.fit.rule is not None:
            self.fit.evaluation_begins(functools.partial(self._meet, one, loss))

    def _meet(self, one: Pass, loss: float) -> list[int]:
        ranks = self.worker.advanced.meet("the end of a pass")
        self.fit.take_loss(loss)
        for model in self.models:
            average_buffers(self.worker, model, one.rows)
        for model in self.averaged:
            states = [State(value, value.rule) for value in tensors_beside([model], set())]
            agree(states, self.worker, "averaged model", one.rows)
        return ranks

    def switches(self, training: bool) -> None:
        self._evaluates = not training
        if not training:
            if self.fit.rule is not None:
                self.fit.enter()
        elif not self._read:  # Otherwise the next batch shows whether training continues.
            self.fit.leave()


class _Fit(Fit):
    """The center of an `AsyncLoop`, whose passes end with evaluations."""

    syncs_at_evaluations = True

    def __init__(self, worker: Worker, loop: AsyncLoop) -> None:
        super().__init__(worker)
        self._loop = loop

    def marks(self) -> str:
        """Return marks of the values, with which not-a-number equals itself, by one copy."""
        sums = [p.detach().double().sum() for _, p in all_named(self._loop.models, self._loop.optimizers)]
        return str(torch.stack([each.to(sums[0].device) for each in sums]).tolist())

    def share_values(self) -> None:
        """Share values that the script has set, such as by load_state_dict, after the next step."""
        self.worker.release_shared_params()
        self.rule = None


def _among(one: Any, objects: Sequence[Any]) -> bool:
    return any(one is each for each in objects)


def _touch(touched: set[int], number: int, parameter: Tensor) -> None:
    touched.add(number)


def _closure_of(args: Any, kwargs: Any) -> Any:
    """Return the closure among the arguments of a step, of which the first is the optimizer."""
    return args[1] if len(args) > 1 else kwargs.get("closure")


_NEVER = (
    "was followed by no step that synchronizes: call loss.backward() and step() of the optimizer that prepare was given"
)

# The loop in which prepared objects take part.
_current: list[Loop] = []


def current() -> Loop | None:
    return _current[0] if _current else None


def begin(loop: Loop) -> None:
    """Make this the loop of all prepared objects; an earlier one ends."""
    before = current()
    if before is not None:
        before.close()
    _current[:] = [loop]
    watch(current)


def passing(part: Part, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of one pass over a prepared loader, and tell the loop of them."""
    loop = _current[0]
    one = Pass(part)
    loop._open.append(one)
    try:
        for batch in loop.worker.loading(batches):
            loop.draws(one, part.rows(batch))
            yield batch
    finally:
        loop._open.remove(one)
    loop.ends(one)
