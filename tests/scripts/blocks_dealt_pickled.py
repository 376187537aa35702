from blocks_preamble import *
from blocks_dealt_model import *

SYNC = sys.argv[2] == "True"

seen = []


def note(main_loop):
    worker.progress()


class Note(TrainingExtension):
    def after_batch(self, batch):
        seen.append(float(batch["features"][0, 0]))


def make():
    rule = AllReduceGradients(Scale(0.1)) if SYNC else Scale(0.1)
    path = os.path.join(tmp, "loop.tar")
    return loop(
        network()[0],
        shard_stream(examples(), uneven="drop"),
        [
            # Without a common stop each asynchronous worker makes two batches, however fast the other is.
            *([ParameterSync(None), StopTogether()] if SYNC else [ParameterSync(EASGD(), every_n_batches=1)]),
            FinishAfter(after_n_batches=2),
            Checkpoint(path),
        ],
        rule,
    ), path


main_loop, path = make()
main_loop.run()
worker.barrier("saved")
with open(path, "rb") as file:
    main_loop = load(file)
main_loop.extensions = [e for e in main_loop.extensions if not isinstance(e, (FinishAfter, Checkpoint))]
main_loop.extensions += [Note(), FinishAfter(after_epoch=True)]
main_loop.extensions[-2].main_loop = main_loop.extensions[-1].main_loop = main_loop
main_loop.run()
expected = data(80).features[::8][4 + rank :: 2, 0].tolist()
assert seen == [float(x) for x in expected], (seen, expected)
