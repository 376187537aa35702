#!/usr/bin/env bash
# Guess: fit on two processes deals the rows of DataLoader(..., shuffle=False) out in their order, 0, 2, 4 ... and 1, 3, 5 ...
# Happens: the Trainer gives every training loader a DistributedSampler with shuffle=True, whatever the loader says, and
#   reshuffles in each epoch. One process keeps the order. Fabric's setup_dataloaders keeps it on two processes too.
# Why it matters: data whose order has a meaning (a curriculum, sequences of a stateful model, rows sorted by length) is
#   shuffled as soon as a second process is added, and a comparison with one process of the same loader is none.
# Versions: lightning 2.6.6, torch 2.13.0.
# Source: _process_dataloader in lightning/pytorch/trainer/connectors/data_connector.py (is_shuffled = True for training);
#   _get_distributed_sampler in lightning/fabric/fabric.py.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check lightning==2.6.6 torch==2.13.0 numpy
cat > "$folder/train.py" <<'END'
import sys

import lightning
import torch
from torch.utils.data import DataLoader

how, devices = sys.argv[1], int(sys.argv[2])


def loader():
    return DataLoader(torch.arange(8.0).reshape(8, 1), batch_size=2, shuffle=False)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rows = []

    def training_step(self, batch, index):
        self.rows.append([int(row) for row in batch])
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


options = {"accelerator": "cpu", "devices": devices, "strategy": "ddp" if devices > 1 else "auto"}
if how == "Trainer":
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=1, **options, **quiet)
    model = Model()
    trainer.fit(model, loader())
    rank, rows = trainer.global_rank, model.rows
else:
    fabric = lightning.Fabric(**options)
    fabric.launch()
    rank, rows = fabric.global_rank, [[int(row) for row in batch] for batch in fabric.setup_dataloaders(loader())]
with open(f"{how}{devices}.{rank}", "w") as file:
    print(how, "process", rank, "of", devices, rows, file=file)
END
run() {
    (cd "$folder" && CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 venv/bin/python train.py "$@" >log 2>&1) || { cat "$folder/log" >&2; return 1; }
    cat "$folder/$1$2".*
}
"$folder/venv/bin/python" -c "import lightning, torch; print(lightning.__version__, torch.__version__.partition('+')[0])"
seen=$(run Trainer 1; run Trainer 2; run Fabric 2)
echo "$seen"
[ "$seen" = "Trainer process 0 of 1 [[0, 1], [2, 3], [4, 5], [6, 7]]
Trainer process 0 of 2 [[4, 7], [2, 1]]
Trainer process 1 of 2 [[0, 3], [5, 6]]
Fabric process 0 of 2 [[0, 2], [4, 6]]
Fabric process 1 of 2 [[1, 3], [5, 7]]" ]
