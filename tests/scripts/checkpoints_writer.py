import sys
import numpy as np
from pathlib import Path
from platoon_base.checkpoints.files import About, Checkpoint, CheckpointFolder, read_checkpoint
from platoon_base.layout import Layout

folder = CheckpointFolder(Path(sys.argv[1]))
found = folder.newest()
value = int(read_checkpoint(found[0]).center[0][0]) if found else 0
while True:
    value += 1
    center = [np.full(30_000, value, "float64")]
    folder.save(Checkpoint.of(About(seed=0, size=1, seconds=0.0), Layout.of(center), center, []))
    print(value, flush=True)
