import os
import tempfile

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from task import make_model, make_rows
from torch import distributed, nn
from torch.utils.data import DataLoader


def train():
    torch.manual_seed(0)
    model = prepare_model(make_model())
    rows = DataLoader(make_rows(6400, 1), 32, shuffle=True, num_workers=1)
    loader = prepare_data_loader(rows)
    test = prepare_data_loader(DataLoader(make_rows(800, 2), 100))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    steps = 3 * len(loader) // 2
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, steps)

    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        model.train()
        for number, (x, y) in enumerate(loader):
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            (loss / 2).backward()
            if number % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            right = torch.cat([model(x).argmax(1) == y for x, y in test])
        accuracy = right.float().mean()
        distributed.all_reduce(accuracy, distributed.ReduceOp.AVG)
        with tempfile.TemporaryDirectory() as folder:
            kept = None
            if ray.train.get_context().get_world_rank() == 0:
                file = os.path.join(folder, "model.pt")
                torch.save(model.module.state_dict(), file)
                kept = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"accuracy": accuracy.item()}, checkpoint=kept)


scaling = ray.train.ScalingConfig(num_workers=2)
run = ray.train.RunConfig(storage_path=os.path.abspath("ray"))
TorchTrainer(train, scaling_config=scaling, run_config=run).fit()
