from blocks_preamble import *

cost, error = network()
for _ in range(2):
    main_loop = trained(cost, shard_stream(stream(64)), [ParameterSync(EASGD()), FinishAfter(every_n_epochs=1)])
    same_everywhere(main_loop)
before = values(main_loop)
main_loop.log.current_row["training_finish_requested"] = False
main_loop.run()
assert main_loop.status["epochs_done"] == 2 and (values(main_loop) != before).any()
same_everywhere(main_loop)
