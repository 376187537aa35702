"""Loops that synchronize with a center: one model at the end of each pass, own values while training."""

from job_preamble import ConfigurationError, sys, worker
from prepared_cases import RULES, SETTINGS
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from platoon_base.torch_loops import loops, prepare

torch.manual_seed(0)
X = torch.randn(200, 6)
Y = (X.sum(1) > 0).long()


def values(*models):
    return torch.cat([each.detach().flatten().double() for model in models for each in model.state_dict().values()])


def equal(*models):
    everyone = worker.all_gather(values(*models))
    return torch.equal(everyone[0], everyone[-1])


def change(case):
    """Values and groups that the script sets between passes."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer, loader = torch.optim.Adam(model.parameters(), 0.01), DataLoader(TensorDataset(X, Y), 8)
    model, optimizer, loader = prepare(model, optimizer, loader, **SETTINGS[case])
    for another in (False, True):  # The same training, and a next one.
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.load_state_dict({name: 0 * value + 50 for name, value in model.state_dict().items()})
        if another:
            model, optimizer = prepare(model, torch.optim.Adam(model.parameters(), 0.01), **SETTINGS[case])
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        assert equal(model) and 40 < model[0].weight.mean() < 60, (case, another, model[0].weight)
    later = nn.Linear(2, 2)
    optimizer.add_param_group({"params": later.parameters()})  # It is shared from the next step on.
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(later(model(x)), y).backward()
        optimizer.step()
    assert equal(model, later), case
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        break
    optimizer.add_param_group({"params": nn.Linear(2, 2).parameters()})
    try:
        optimizer.step()
    except ConfigurationError as error:
        assert "add it between passes" in str(error), error
    else:
        assert worker.global_size == 1, "trained a group that is not shared"


for case in [word for word in sys.argv[2:] if word in SETTINGS]:
    change(case)
    torch.manual_seed(worker.global_rank)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
    unused = nn.Linear(2, 2)  # It gets no gradients, and so no moments by itself.
    optimizer = torch.optim.Adam([*model.parameters(), *unused.parameters()], 0.01)
    ema = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=3 * 25)
    loader, held_out = DataLoader(TensorDataset(X, Y), 8, shuffle=True), DataLoader(TensorDataset(X, Y), 40)
    model, optimizer, loader, scheduler, ema, unused, held_out = prepare(
        model, optimizer, loader, scheduler, ema, unused, held_out, **SETTINGS[case]
    )
    for epoch in range(3):
        model.train()
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            assert unused.weight.grad is None
            optimizer.step()
            ema.update_parameters(model)
            scheduler.step()
            if epoch == step == 1:  # An evaluation in the middle of a pass sees the center.
                own = values(model[0])
                model.eval()
                assert not torch.equal(values(model[0]), own) or case == "DiLoCo" or worker.global_size == 1
                model.train()
            if epoch == 1 and step == 5 and case != "DiLoCo" and worker.global_size > 1:
                assert not equal(model), case
        assert equal(model, ema, unused), case
        model.eval()
        for evaluated in (held_out, loader):
            for _ in evaluated:
                assert equal(model, ema), case
        model.train()
        assert equal(model), case
    if worker.global_size > 1:
        rule = loops.current().fit.rule
        assert type(rule) is RULES[case], rule
        assert worker.advanced.sharing, "shared"
    assert scheduler.last_epoch == 3 * 25
    assert nn.functional.cross_entropy(model.eval()(X), Y) < 0.65, case
    assert all(parameter.grad is None for parameter in unused.parameters())
worker.close()
