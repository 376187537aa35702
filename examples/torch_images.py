"""A PyTorch network with BatchNorm learns to tell ten kinds of synthetic images, in an ordinary loop of torch.

Start it with `platoon launch -n 2 examples/torch_images.py` for two workers and asynchronous training, with
`platoon launch -n 2 examples/torch_images.py --sync` for averaged gradients, or with `python examples/torch_images.py`
alone.
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from platoon_base import connect
from platoon_base.torch_loops import GradientAverage, average_buffers

BATCH_SIZE = 32
LEARNING_RATE = 0.002
SYNC_EVERY = 5


def load_data():
    """Return images and labels to train on and to test on: ten patterns of 14 x 14 pixels under noise."""
    generator = torch.Generator().manual_seed(0)  # the same data on all workers
    patterns = torch.randn(10, 1, 14, 14, generator=generator)
    labels = torch.randint(10, (2400,), generator=generator)
    images = patterns[labels] + 1.5 * torch.randn(2400, 1, 14, 14, generator=generator)
    return TensorDataset(images[:2000], labels[:2000]), (images[2000:], labels[2000:])


def build():
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 6 * 6, 32),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(32, 10),
    )


def accuracy(model, images, labels, worker):
    """Return the share of right answers on all workers' shards of the test set."""
    average_buffers(worker, model)
    model.eval()
    rows = torch.as_tensor(worker.shard(len(images)))
    with torch.no_grad():
        right = (model(images[rows]).argmax(1) == labels[rows]).sum().item()
    model.train()
    return worker.reduce_metrics({"accuracy": (right, len(rows))})["accuracy"]


def main(num_epochs=6, sync=False, summary=None):
    """Train and test; returns the summary."""
    with connect() as worker:
        torch.manual_seed(worker.shard_seed % 2**63)  # other masks of Dropout on each worker
        train_set, test_set = load_data()
        model = build()
        optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
        sampler = DistributedSampler(train_set, worker.global_size, worker.global_rank, seed=worker.seed)
        loader = DataLoader(train_set, BATCH_SIZE, sampler=sampler)
        if sync:
            average = GradientAverage(worker, model)
        else:
            worker.init_shared_params(model.named_parameters())

        began = time.monotonic()
        for epoch in range(1, num_epochs + 1):
            sampler.set_epoch(epoch)
            for step, (images, labels) in enumerate(loader, 1):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                if sync:
                    average(len(images))
                optimizer.step()
                worker.progress(steps=1, epoch=epoch, loss=loss.item())
                if not sync and step % SYNC_EVERY == 0:
                    worker.sync_params()
        if not sync:
            worker.sync_params()
            worker.barrier()  # until here each worker has parameters of its own
            worker.copy_to_local()
        result = {
            "test_accuracy": accuracy(model, *test_set, worker),
            "workers": worker.global_size,
            "epochs": num_epochs,
            "train_seconds": round(time.monotonic() - began, 3),
        }
        if worker.is_leader:
            torch.save(model.state_dict(), "images.pt")
            print(f"test accuracy: {result['test_accuracy']:.4f}")
            worker.report({"test_accuracy": result["test_accuracy"]})
            if summary:
                with open(summary, "w") as file:
                    json.dump(result, file, indent=2)
        return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=6)
    parser.add_argument("--sync", action="store_true", help="average gradients in each step")
    parser.add_argument("--summary", help="file for the summary, as JSON")
    main(**vars(parser.parse_args()))
