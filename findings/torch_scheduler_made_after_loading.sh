#!/usr/bin/env bash
# Guess: with the states of optimizer and scheduler both saved and both loaded, the rates go on as without a break.
# Happens: it depends on the order. A scheduler that is made after its optimizer was loaded writes the first rate of its
#   schedule into the optimizer, and loading the scheduler's state does not undo that. LinearLR, ConstantLR, ChainedScheduler
#   and SequentialLR compute each rate from the last one, so a warm-up that ended long ago divides all later rates by 3
#   (start_factor 1/3); others are wrong for one step. StepLR, ExponentialLR and CosineAnnealingLR are right.
# Why it matters: resuming makes the objects in this order wherever a function restores the model and its optimizer and
#   the schedule is added afterwards. A worker that is replaced trains at a third of the others' rate, for good.
# Versions: torch 2.13.0.
# Source: torch/optim/lr_scheduler.py: _initial_step in each constructor; load_state_dict updates __dict__ alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy
cat > "$folder/resume.py" <<'END'
import copy
import warnings

import torch
from torch.optim import SGD
from torch.optim import lr_scheduler as schedulers

warnings.simplefilter("ignore")
kinds = {
    "LinearLR": lambda o: schedulers.LinearLR(o, total_iters=3),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, total_iters=3), schedulers.CosineAnnealingLR(o, 10)], [3]
    ),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 10),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 1.0, 20),
}


def optimizer():
    return SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)


def rates(optimizer, scheduler):
    seen = []
    for _ in range(3):
        seen.append(round(optimizer.param_groups[0]["lr"], 4))
        optimizer.step()
        scheduler.step()
    return seen


print(torch.__version__.partition("+")[0])
for name, kind in kinds.items():
    one = optimizer()
    schedule = kind(one)
    for _ in range(5):
        one.step()
        schedule.step()
    saved = copy.deepcopy((one.state_dict(), schedule.state_dict()))
    both_made = optimizer()
    its_schedule = kind(both_made)
    both_made.load_state_dict(copy.deepcopy(saved[0]))
    its_schedule.load_state_dict(copy.deepcopy(saved[1]))
    loaded = optimizer()
    loaded.load_state_dict(copy.deepcopy(saved[0]))
    made_after = kind(loaded)
    made_after.load_state_dict(copy.deepcopy(saved[1]))
    unbroken = rates(one, schedule)
    print(name, unbroken, "made before:", rates(both_made, its_schedule) == unbroken, "made after:", rates(loaded, made_after))
END
seen=$(CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/resume.py")
echo "$seen"
[ "$seen" = "2.13.0
LinearLR [1.0, 1.0, 1.0] made before: True made after: [0.3333, 0.3333, 0.3333]
SequentialLR [0.9045, 0.7939, 0.6545] made before: True made after: [0.3333, 0.2926, 0.2412]
CosineAnnealingLR [0.5, 0.3455, 0.2061] made before: True made after: [0.5, 0.3455, 0.2061]
OneCycleLR [1.0, 0.9875, 0.9505] made before: True made after: [0.04, 0.9875, 0.9505]" ]
