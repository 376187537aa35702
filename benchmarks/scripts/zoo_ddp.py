"""Train one of the zoo's networks in Keras on torch by DistributedDataParallel: what zoo.py compares averages with.

Started like zoo_keras.py, with its arguments; the folder of the zoo is on the path. Each worker takes all mini-batches.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import keras
import torch
import torch.distributed
import zoo_keras
from keras_ddp import in_ddp
from keras_models import MODELS
from zoo_measure import parser

from platoon_base import connect


def wrapped(model: keras.Model, options: argparse.Namespace) -> keras.Model:
    """Return the model, wrapped, in a process group of all workers."""
    options.rule = "ddp"
    worker = connect()
    cuda = torch.cuda.is_available()
    store = worker.gather(os.path.join(tempfile.gettempdir(), f"zoo-ddp-{os.getpid()}"), name="store")[0]
    torch.distributed.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{store}",
        rank=worker.global_rank,
        world_size=worker.global_size,
    )
    return in_ddp(model)


if __name__ == "__main__":
    zoo_keras.main(parser(__doc__, MODELS, image=224).parse_args(), wrapped, divided=False)
    torch.distributed.destroy_process_group()
