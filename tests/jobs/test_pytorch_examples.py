"""The example scripts of PyTorch's own repository as shipped, with `prepare` as the only change, on two workers.

``PYTORCH_EXAMPLES=/path/to/a/checkout`` of github.com/pytorch/examples; tests/README.md has the packages they need.
"""

import importlib.util
import json
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from needing import needs_loops

CHECKOUT = os.environ.get("PYTORCH_EXAMPLES", "")
pytestmark = [pytest.mark.rare, pytest.mark.timeout(1500)]


class Example(NamedTuple):
    script: str
    before: str  # The line before which `prepare` is called.
    prepared: str
    args: str
    changed: tuple[str, str] = ("", "")  # Another pattern, and what stands in its place.
    needs: str = "torchvision"


IMPORTS = """\
from platoon_base import connect
from platoon_base.torch_loops import prepare
from trained_parameters import note_now_and_later, write
"""
EPOCHS = r"^ *for epoch in range\("
PARTS = "model, optimizer, train_loader, scheduler"
RL = {"before": r"^def main\(", "args": "", "changed": (r"count\(1\)", "range(1, 4)"), "needs": "gymnasium"}
EXAMPLES = {
    "mnist": Example("mnist/main.py", EPOCHS, PARTS, "--epochs 2 --batch-size 8 --test-batch-size 16"),
    "imagenet": Example("imagenet/main.py", EPOCHS, PARTS, "../images -a resnet18 -j 1 --epochs 1 -b 2"),
    "word language model": Example(
        "word_language_model/main.py",
        "^def repackage_hidden",
        "model, optimizer",
        "--use-optimizer --lr 0.001 --epochs 2 --emsize 8 --nhid 8 --batch_size 2 --bptt 5 --data ../text",
        (r"^# Load the best.*", "connect().barrier('saved')"),
        needs="torch",
    ),
    "VAE": Example("vae/main.py", r"^def train\(", "model, optimizer, train_loader", "--epochs 2 --batch-size 8"),
    "DCGAN": Example(
        "dcgan/main.py",
        EPOCHS,
        "netD, netG, optimizerD, optimizerG, dataloader",
        "--dataset mnist --dataroot ../data --batchSize 4 --ngf 4 --ndf 4 --niter 1 --workers 1",
    ),
    "time sequence": Example(
        "time_sequence_prediction/train.py",
        r"^    for i in range\(opt\.steps",
        "seq, optimizer",
        "--steps 2",
        needs="matplotlib",
    ),
    "REINFORCE": Example("reinforcement_learning/reinforce.py", prepared="policy, optimizer", **RL),
    "actor-critic": Example("reinforcement_learning/actor_critic.py", prepared="model, optimizer", **RL),
    "siamese network": Example(
        "siamese_network/main.py", EPOCHS, PARTS, "--epochs 1 --batch-size 8 --test-batch-size 8"
    ),
    "vision transformer": Example(
        "vision_transformer/main.py",
        r"^    TrainEval\(args",
        "model, optimizer, train_loader",
        "--epochs 1 --img-size 32 --latent-size 24 --num-heads 2 --num-encoders 1 --batch-size 4",
        (r"CIFAR10\(root=.*?, train=.*?, download=True", "FakeData(16, (3, 32, 32)"),
    ),
    "super resolution": Example(
        "super_resolution/main.py",
        r"^def train\(",
        "model, optimizer, training_data_loader",
        "--upscale_factor 2 --batchSize 2 --testBatchSize 2 --nEpochs 1 --threads 1",
    ),
}


def made_for(example, mode, text):
    """Return the script with `prepare`, and with lines that write digests of the parameters."""
    (line,) = re.findall(f"{example.before}.*\n", text, re.MULTILINE)
    indent = line[: len(line) - len(line.lstrip())]
    call = f"{example.prepared} = prepare({example.prepared}, mode={mode!r})"
    text = text.replace(line, f"{indent}{call}\n{indent}note_now_and_later({example.prepared})\n{line}")
    if example.changed[0]:
        text, count = re.subn(*example.changed, text, flags=re.MULTILINE)
        assert count
    return re.sub(r"^(?=import )", IMPORTS, text, count=1, flags=re.MULTILINE) + "\n\nwrite()\n"


def make_data(folder):
    """Write small data in the formats that the scripts read; labels follow from the images."""
    import torch
    from PIL import Image

    random = np.random.default_rng(0)
    raw = folder / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, rows in (("train", 64), ("t10k", 32)):
        labels = np.arange(rows, dtype=np.uint8) % 10
        images = (random.integers(0, 100, (rows, 28, 28)) + 15 * labels[:, None, None]).astype(np.uint8)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            header = np.array([0x0800 + values.ndim, *values.shape], ">i4").tobytes()
            (raw / f"{name}-{kind}-ubyte").write_bytes(header + values.tobytes())

    def write_images(folder, count, size):
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(random.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(folder / f"{number}.png")

    for kind in ("train", "val"):
        for name in ("cat", "dog"):
            write_images(folder / "images" / kind / name, 4, 64)
    for kind in ("train", "test"):
        write_images(folder / "super_resolution" / "dataset" / "BSDS300" / "images" / kind, 8, 256)
    (folder / "text").mkdir()
    for name in ("train", "valid", "test"):
        words = (" ".join(random.choice(list("abcdefgh"), 12)) for _ in range(10))
        (folder / "text" / f"{name}.txt").write_text("\n".join(words))
    series = np.sin((np.arange(40) + random.integers(-80, 80, (8, 1))) / 20)
    (folder / "time_sequence_prediction").mkdir()
    with open(folder / "time_sequence_prediction" / "traindata.pt", "wb") as file:
        torch.save(series, file)
    (folder / "vae" / "results").mkdir(parents=True)


@needs_loops("torch")
@pytest.mark.skipif(not CHECKOUT, reason="needs PyTorch's examples: PYTORCH_EXAMPLES=/path/to/a/checkout")
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_one_model_on_two_workers(platoon, tmp_path, name, mode):
    example = EXAMPLES[name]
    source = Path(CHECKOUT) / example.script
    if not source.exists():
        pytest.skip(f"needs PyTorch's examples of a commit that has {example.script}")
    if importlib.util.find_spec(example.needs) is None:
        pytest.skip(f"needs {example.needs} beside PyTorch's examples")
    make_data(tmp_path)
    folder = tmp_path / source.parent.name
    shutil.copytree(source.parent, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("data"))
    (folder / source.name).write_text(made_for(example, mode, source.read_text()))
    words = ["launch", "-n", 2, "-D", "cpu", source.name, *example.args.split()]
    # The data of the time sequence are of NumPy, which torch.load refuses by default since 2.6.
    platoon(*words, cwd=folder, environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}).require()
    first, second = (json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2))
    if mode == "sync" or "loader" in example.prepared:  # Without passes asynchronous workers meet nowhere.
        assert first == second
    assert first[0] != first[1], "nothing was trained"
