from blocks_preamble import *

cost, _ = network()
closes = Look(after_epoch=lambda main_loop: worker.close())
train = shard_stream(stream(32), uneven="drop")
main_loop = loop(cost, train, [ParameterSync(EASGD(), every_n_batches=2), closes, FinishAfter(after_n_epochs=1)])
with raises(ConfigurationError, "left the job before its main loop ended", "after main_loop.run()"):
    main_loop.run()
