from blocks_preamble import EASGD, FinishAfter, ParameterSync, everyones, loop, network, shard_stream, stream, values

cost, error = network()
for _ in range(2):
    main_loop = loop(cost, shard_stream(stream(64)), [ParameterSync(EASGD()), FinishAfter(every_n_epochs=1)])
    main_loop.run()
    assert (everyones(values(main_loop)) == values(main_loop)).all()
before = values(main_loop)
main_loop.log.current_row["training_finish_requested"] = False
main_loop.run()
assert main_loop.status["epochs_done"] == 2 and (values(main_loop) != before).any()
assert (everyones(values(main_loop)) == values(main_loop)).all()
