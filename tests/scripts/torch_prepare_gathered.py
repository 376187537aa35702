"""Rows of all workers for metrics, in the order of the data; what one worker prints and saves; mistakes."""

from job_preamble import ConfigurationError, EASGD, Path, raises, sys, worker
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from platoon_base.torch_loops import gather_for_metrics, is_main, prepare, print, save

MODE = sys.argv[2]
rows = torch.arange(26 * 3).reshape(26, 3)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.001)


class Stream(IterableDataset):
    def __iter__(self):
        yield from rows


loaders = [
    DataLoader(TensorDataset(rows, rows[:, 0] > 30), 4),
    DataLoader(TensorDataset(rows, rows[:, 0] > 30), 5, num_workers=1),
    DataLoader(Stream(), 4),
    DataLoader(Stream(), 4, num_workers=1),
]
model, optimizer, *loaders = prepare(model, optimizer, *loaders, mode=MODE)
for number, loader in enumerate(loaders):
    found, right, mine = [], [], 0
    for batch in loader:
        if number < 2:
            x, y = batch
            gathered = gather_for_metrics({"x": x, "y": [y, y.float().bfloat16(), 7 + worker.global_rank]})
            right += gathered["y"][0].tolist()
            assert gathered["y"][0].dtype is torch.bool
            assert gathered["y"][1].tolist() == gathered["y"][0].float().tolist()
            assert gathered["y"][2].tolist() == [7 + rank for rank in range(worker.global_size)]
            batch = x
            found.append(gathered["x"])
        else:
            found.append(gather_for_metrics(batch))
        mine += len(batch)
    assert torch.equal(torch.cat(found), rows), (number, found)
    assert number > 1 or right == (rows[:, 0] > 30).tolist()
    assert mine <= 26 * (0.6 if worker.global_size > 1 else 1)
    own = torch.cat([batch[0] if number < 2 else batch for batch in loader])
    assert torch.equal(gather_for_metrics(own), rows), "of a whole pass"
    assert len(gather_for_metrics(own[:1])) == worker.global_size

for _ in range(2):
    for x, _ in loaders[0]:
        optimizer.zero_grad()
        model(x.float()).square().mean().backward()
        optimizer.step()
path = Path(sys.argv[1], "model.pt")
save(model.state_dict(), path)
print("printed by", worker.global_rank)
worker.barrier()
assert torch.equal(torch.load(path)["weight"], model.weight), "of all workers"
assert [each.name for each in path.parent.glob("model.pt*")] == ["model.pt"]
assert sum(worker.gather(is_main())) == 1


def refused(text, *objects, **settings):
    with raises(ConfigurationError, text):
        prepare(*objects, **settings)


refused("pass models, optimizers", 3)
refused("DistributedDataParallel: pass the model itself", type("DistributedDataParallel", (nn.Module,), {})())
refused('pass "async" or "sync"', model, mode="both")
refused("averaged gradients do not use", model, mode="sync", strategy=EASGD())
refused('"linear" or "sqrt"', model, mode="sync", scaling=2)
refused("pass a number", model, scaling="linear")
refused("one of the two", model, scaling=2, strategy=EASGD())
refused("whole number", model, sync_every=0)
refused("call it on a batch before", nn.LazyLinear(2))
if worker.global_size > 1:
    refused("equal settings", loaders[0], mode="async" if MODE == "sync" else "sync")
    scheduled = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    refused("a scheduler of the learning rate", scheduled, mode="sync", scaling="sqrt")
    # A second training with the same objects, which are not prepared twice.
    again = prepare(model, optimizer, loaders[0], mode=MODE, scaling="linear" if MODE == "sync" else None)
    assert again[2] is loaders[0]
    for _ in range(2):
        prepare(model, optimizer, loaders[0], mode=MODE, scaling="linear" if MODE == "sync" else None)
    assert optimizer.param_groups[0]["lr"] == 0.001 * (2 if MODE == "sync" else 1)
    for x, _ in loaders[0]:
        optimizer.zero_grad()
        model(x.float()).square().mean().backward()
        optimizer.step()
    values = worker.all_gather(model.weight.detach())
    assert torch.equal(values[0], values[1])
    # Another training has begun, so the first one is over.
    prepare(nn.Linear(1, 1), mode=MODE)
    with raises(ConfigurationError, "another prepare has ended"):
        optimizer.step()
if MODE == "async" and worker.global_size > 1:
    lonely = prepare(nn.Linear(1, 1))
    with raises(ConfigurationError, "got no optimizer"):
        lonely(torch.ones(1, 1)).sum().backward()
worker.close()
