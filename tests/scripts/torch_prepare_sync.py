"""Loops with averaged gradients end as one process with the batches of both workers, to 1e-6; one after another."""

from job_preamble import connect
import copy
import functools
import math
import pickle
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from platoon_base.torch_loops import prepare

WORKERS = connect().global_size
generator = torch.Generator().manual_seed(0)
X = torch.randn(131, 6, generator=generator, dtype=torch.float64)
Y = torch.sin(X.sum(1, keepdim=True))


def rows(batch):
    return DataLoader(TensorDataset(X, Y), batch)


def build(seed, *between):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), *between, nn.Tanh(), nn.Linear(8, 1)).double()


def require_equal(mine, alone, what):
    for (name, value), right in zip(mine.state_dict().items(), alone.state_dict().values()):
        said = lambda text, name=name: f"{what}: {name} {text}"
        torch.testing.assert_close(value, right, rtol=1e-6, atol=1e-9, msg=said)


def compare(what, train, *between, batch=8):
    """Train prepared objects on both workers, and others with batches twice as large; compare the models."""
    model, alone = build(connect().global_rank, *copy.deepcopy(between)), build(0, *copy.deepcopy(between))
    found = train(model, lambda *each: prepare(*each, mode="sync"), rows(batch))
    right = train(alone, lambda *each: each[0] if len(each) == 1 else each, rows(batch * WORKERS))
    require_equal(model, alone, what)
    return found, right


def usual(model, ready, loader):
    """AdamW, clipping, accumulation over two batches."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    model, optimizer, loader = ready(model, optimizer, loader)
    norms = []
    for _ in range(2):
        for i, (x, y) in enumerate(loader, 1):
            (nn.functional.mse_loss(model(x), y) / 2).backward()
            if i % 2 == 0 or i == len(loader):
                norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
                optimizer.step()
                optimizer.zero_grad()
    return norms


found, right = compare("usual", usual)
assert max(abs(a - b) for a, b in zip(found, right, strict=True)) < 1e-9  # of the averages, not of own gradients


def closure(model, ready, loader):
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    model, optimizer, loader = ready(model, optimizer, loader)
    calls = 0
    for x, y in [*loader, *loader, *loader]:

        def loss_of_batch():
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(loss_of_batch)
    return calls


found, right = compare("closure", closure, batch=66)
assert found == right > 3


def scaler(model, ready, loader):
    """One worker's infinity makes all skip the same step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model, optimizer, loader = ready(model, optimizer, loader)
    scaler, scales = torch.amp.GradScaler("cpu", init_scale=4.0), []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss * (math.inf if (x[:, 0] == X[24 * WORKERS, 0]).any() else 1)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


found, right = compare("scaler", scaler)
assert found == right == [4.0] * 3 + [2.0] * (len(right) - 3)


def accumulating(model, ready, loader):
    """From the third step on, gradients are averaged once for three batches; an infinity of one worker reaches all."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model, optimizer, loader = ready(model, optimizer, loader)
    scaler, scales, averages = torch.amp.GradScaler("cpu", init_scale=4.0), [], []
    for epoch in range(3):
        before = connect().advanced.activity[1]
        for i, (x, y) in enumerate(loader, 1):
            loss = nn.functional.mse_loss(model(x), y) / 3
            bad = epoch == 2 and (x[:, 0] == X[24 * WORKERS, 0]).any()
            scaler.scale(loss * (math.inf if bad else 1)).backward()
            if i % 3 == 0 or i == len(loader):
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scales.append(scaler.get_scale())
        averages.append(connect().advanced.activity[1] - before)
    return scales, averages


found, right = compare("accumulating", accumulating, batch=4)
assert found[0] == right[0]
assert min(found[0]) == 2.0
# Of 17 batches: each of the first 6 and of the last 3, of the others the third ones. A skipped step is a new rhythm.
assert WORKERS == 1 or [calls // 2 for calls in found[1]] == [11, 7, 11], found  # Two calls for each average.


def changed_between(model, ready, loader, groups=lambda i: i % 3 == 0, clips=lambda last: True, before=False):
    """Gradients that the script clips before a step is due, or for a step that comes earlier than usual."""
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    model, optimizer, loader = ready(model, optimizer, loader)
    for _ in range(2):
        for i, (x, y) in enumerate(loader, 1):
            nn.functional.mse_loss(model(x), y).backward()
            if clips(groups(i)):
                if before:
                    for parameter in model.parameters():
                        parameter.grad.clamp_(-0.02, 0.02)
                else:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                    nn.utils.clip_grad_value_(model.parameters(), 0.02)
            if groups(i) or i == len(loader):
                optimizer.step()
                optimizer.zero_grad()


compare("clipped between", changed_between, batch=4)
compare("clamped between", functools.partial(changed_between, before=True), batch=4)
compare("early step", functools.partial(changed_between, groups=lambda i: i in (4, 8, 10, 14), clips=bool), batch=4)


def steps_by_hand(model, ready, loader):
    """A step of gradients without a backward pass, in a loop that accumulates."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model, optimizer, loader = ready(model, optimizer, loader)
    for i, (x, y) in enumerate(loader, 1):
        loss = nn.functional.mse_loss(model(x), y)
        if i < 10:
            loss.backward()
        else:
            for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
                parameter.grad = gradient
        if i % 3 == 0 or i >= 10:
            optimizer.step()
            optimizer.zero_grad()


compare("by hand between", steps_by_hand, batch=4)


def two_models(model, ready, loader):
    """Two models whose optimizers step in turn, as of a GAN; a backward pass reaches both."""
    torch.manual_seed(3)
    other = nn.Linear(1, 1).double()
    first, second = torch.optim.Adam(model.parameters(), 0.01), torch.optim.Adam(other.parameters(), 0.02)
    model, other, first, second, loader = ready(model, other, first, second, loader)
    for x, y in loader:
        second.zero_grad()
        nn.functional.mse_loss(other(model(x).detach()), y).backward()
        nn.functional.mse_loss(other(y), y).backward()
        second.step()
        first.zero_grad()
        nn.functional.mse_loss(other(model(x)), y).backward()
        first.step()


compare("two models", two_models)


def by_hand(model, ready, loader):
    """No optimizer."""
    model, loader = ready(model, loader)
    for x, y in loader:
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad


compare("by hand", by_hand)


def without_backward(model, ready, loader):
    """Gradients of torch.autograd.grad are averaged by the step."""
    optimizer, loader = ready(torch.optim.SGD(model.parameters(), 0.1), loader)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
            parameter.grad = gradient
        optimizer.step()


compare("without backward", without_backward)


def compiled(model, ready, loader):
    model = torch.compile(model, backend="eager")
    model, optimizer, loader = ready(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


compare("compiled", compiled)


def compiled_step(model, ready, loader):
    model, optimizer, loader = ready(model, torch.optim.SGD(model.parameters(), 0.1), loader)

    @torch.compile(backend="eager")
    def step(x, y):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    for x, y in loader:
        step(x, y)


compare("compiled step", compiled_step)


def unfrozen(model, ready, loader):
    """Part of a model and a whole one are unfrozen after a pass; a third comes in a new group."""
    torch.manual_seed(3)
    frozen = nn.Linear(1, 1).double().requires_grad_(False)
    later, scale = nn.Linear(1, 1).double(), torch.ones(2, 1, dtype=torch.float64)
    first, second = (nn.Parameter(each, bool(i)) for i, each in enumerate(scale))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD([*model.parameters(), *frozen.parameters(), first, second], 0.1)
    model, optimizer, loader, frozen = ready(model, optimizer, loader, frozen)
    for epoch in range(3):
        if epoch == 1:
            model[0].requires_grad_(True)
            frozen.requires_grad_(True)
            first.requires_grad_(True)
        if epoch == 2:
            optimizer.add_param_group({"params": later.parameters()})
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(first * second * later(frozen(model(x))), y).backward()
            optimizer.step()
    return frozen, later


for mine, alone in zip(*compare("unfrozen", unfrozen)):
    require_equal(mine, alone, "unfrozen")


def scheduled(make, per_batch):
    def train(model, ready, loader):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = make(optimizer)
        model, optimizer, loader, scheduler = ready(model, optimizer, loader, scheduler)
        rates = []
        for _ in range(2):
            for step, (x, y) in enumerate(loader, 1):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                if per_batch is True or (per_batch == "last" and step == len(loader)):
                    scheduler.step()
            if not per_batch:
                loss = model(X[: 30 * (1 + connect().global_rank)]).square().mean()  # another one on each worker
                plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
                scheduler.step(loss.item()) if plateau else scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return rates, scheduler

    return train


# 17 batches of 8 rows in one process, 9 on each of two workers.
total = 2 * len(rows(8))
rates, scheduler = scheduled(lambda each: torch.optim.lr_scheduler.OneCycleLR(each, 0.2, total), True)(
    build(0), lambda *each: prepare(*each, mode="sync"), rows(8)
)
assert scheduler.last_epoch == total, scheduler.last_epoch
assert type(scheduler) is not torch.optim.lr_scheduler.OneCycleLR or WORKERS == 1
assert "step" not in scheduler.state_dict()
loaded = pickle.loads(pickle.dumps(scheduler))
assert type(loaded) is torch.optim.lr_scheduler.OneCycleLR and loaded.last_epoch == total
try:
    short = scheduled(lambda each: torch.optim.lr_scheduler.OneCycleLR(each, 0.2, 20), True)
    short(build(0), lambda *each: prepare(*each, mode="sync"), rows(8))
except ValueError as error:
    assert ("leave it out of prepare" in str(error)) == (WORKERS > 1), error
steps = lambda each: torch.optim.lr_scheduler.StepLR(each, 1, 0.5)
found, right = compare("by pass", scheduled(steps, False))
assert found[0] == right[0] == [0.05, 0.025]
found, right = compare("at the last batch", scheduled(steps, "last"))
assert found[0] == right[0] == [0.05, 0.025]
plateau = lambda each: torch.optim.lr_scheduler.ReduceLROnPlateau(each, patience=0)
rates, _ = scheduled(plateau, False)(build(0), lambda *each: prepare(*each, mode="sync"), rows(8))
assert len({tuple(each) for each in connect().gather(rates)}) == 1


def averaged_model(model, ready, loader):
    """BatchNorm's statistics are averaged at the end of a pass, those of the average too."""
    optimizer, ema = (
        torch.optim.SGD(model.parameters(), 0.1),
        torch.optim.swa_utils.AveragedModel(model, use_buffers=True),
    )
    model, optimizer, loader, ema = ready(model, optimizer, loader, ema)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        ema.update_parameters(model)
    return ema


model = build(connect().global_rank, nn.BatchNorm1d(8))
ema = averaged_model(model, lambda *each: prepare(*each, mode="sync"), rows(8))
flat = torch.cat(
    [each.detach().flatten().double() for each in [*model.state_dict().values(), *ema.state_dict().values()]]
)
everyone = connect().all_gather(flat)
assert all(torch.equal(each, everyone[0]) for each in everyone)

linear = torch.optim.SGD(build(0).parameters(), 0.1)
prepare(linear, mode="sync", scaling="linear")
assert linear.param_groups[0]["lr"] == 0.1 * WORKERS
connect().close()
