import sys

from blocks_preamble import Checkpoint, EASGD, FinishAfter, ParameterSync, Printing, loop, network, rank, shard_stream
from blocks_preamble import stream, tmp

from blocks.serialization import load
from platoon_plugins.blocks import LEADER_ONLY

if len(sys.argv) > 2:
    with open(tmp + "/1.tar", "rb") as file:
        load(file).run()
else:
    saving = Checkpoint(f"{tmp}/{rank}.tar", after_n_batches=1, after_training=False)
    together = ParameterSync(EASGD(), leader_only=tuple(kind for kind in LEADER_ONLY if kind is not Checkpoint))
    extensions = [together, saving, Printing(), FinishAfter(after_n_batches=3)]
    loop(network()[0], shard_stream(stream(64)), extensions).run()
