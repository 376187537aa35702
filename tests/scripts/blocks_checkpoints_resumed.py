from blocks_preamble import *

if len(sys.argv) > 3:
    with open(tmp + "/loop.tar", "rb") as file:
        main_loop = load(file)
    done = main_loop.status["iterations_done"]
    saved = values(main_loop)
    seen = []
    look = Look(before_batch=lambda main_loop: seen.append(values(main_loop)))
    look.main_loop = main_loop
    main_loop.extensions.append(look)
else:
    cost, error = network()
    sync = sys.argv[2] == "sync"
    extensions = [
        ParameterSync(None if sync else EASGD(), **({} if sync else dict(every_n_batches=2))),
        StopTogether(),
        DistributedMonitoring([cost, error], stream(45, seed=1), prefix="valid"),
        DistributedTrainingMonitoring([cost], prefix="train", after_epoch=True),
        Checkpoint(tmp + "/loop.tar", every_n_batches=5, after_training=False),
        Printing(),
        FinishAfter(after_n_batches=9),
    ]
    rule = AllReduceGradients(Momentum(0.1, 0.9)) if sync else Momentum(0.1, 0.9)
    main_loop = loop(cost, shard_stream(stream(96, shuffled=True), uneven="drop"), extensions, rule)
    done = 0
main_loop.run()
ends = same_everywhere(main_loop)
if done:
    assert done == 5 and (seen[0] == saved).all() and (ends != saved).any()
    if sys.argv[2] == "sync":  # asynchronous workers stop as soon as one wants to, each where it is
        assert main_loop.status["iterations_done"] == 9 and main_loop.status["epochs_done"] == 1 and len(seen) == 4
        # Of the 12 batches of the epoch 10 were done by two workers.
        assert "valid_cost" in main_loop.log[6 if size == 2 else 7], main_loop.log
