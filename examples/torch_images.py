"""A PyTorch network with BatchNorm learns to tell ten kinds of synthetic images, in an ordinary loop of torch.

Start it with `platoon launch -n 2 examples/torch_images.py` for two workers and asynchronous training, with
`platoon launch -n 2 examples/torch_images.py --sync` for averaged gradients, or with `python examples/torch_images.py`
alone. Only `prepare`, `gather_for_metrics`, `print` and `save` know of several workers.
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from platoon_base import connect
from platoon_base.torch_loops import gather_for_metrics, is_main, prepare, print, report, save

BATCH_SIZE = 32
LEARNING_RATE = 0.002


def load_data():
    """Return images and labels to train on and to test on: ten patterns of 14 x 14 pixels under noise."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 1, 14, 14, generator=generator)
    labels = torch.randint(10, (2400,), generator=generator)
    images = patterns[labels] + 1.5 * torch.randn(2400, 1, 14, 14, generator=generator)
    return TensorDataset(images[:2000], labels[:2000]), TensorDataset(images[2000:], labels[2000:])


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


@torch.no_grad()
def accuracy(model, loader):
    """Return the share of right answers."""
    model.eval()
    right = [gather_for_metrics(model(images).argmax(1) == labels) for images, labels in loader]
    return torch.cat(right).float().mean().item()


def main(num_epochs=6, sync=False, summary=None):
    """Train and test; returns the summary."""
    train_set, test_set = load_data()
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    loader, test_loader = DataLoader(train_set, BATCH_SIZE, shuffle=True), DataLoader(test_set, 100)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2 * LEARNING_RATE, num_epochs * len(loader))
    model, optimizer, loader, test_loader, scheduler = prepare(
        model, optimizer, loader, test_loader, scheduler, mode="sync" if sync else "async"
    )

    began = time.monotonic()
    for epoch in range(1, num_epochs + 1):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch}: test accuracy {accuracy(model, test_loader):.4f}")
    result = {
        "test_accuracy": accuracy(model, test_loader),
        "workers": connect().global_size,
        "epochs": num_epochs,
        "train_seconds": round(time.monotonic() - began, 3),
    }
    save(model.state_dict(), "images.pt")
    report(test_accuracy=result["test_accuracy"])
    if is_main() and summary:
        with open(summary, "w") as file:
            json.dump(result, file, indent=2)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=6)
    parser.add_argument("--sync", action="store_true", help="average gradients in each step")
    parser.add_argument("--summary", help="file for the summary, as JSON")
    main(**vars(parser.parse_args()))
