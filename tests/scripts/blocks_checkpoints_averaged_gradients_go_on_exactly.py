from blocks_preamble import *


def begin(extensions):
    rule = CompositeRule([AllReduceGradients(), StepClipping(1.0), Adam(0.01)])
    train = shard_stream(stream(96, shuffled=True), uneven="drop")
    return loop(network()[0], train, [ParameterSync(None), *extensions], rule)


if len(sys.argv) > 2:
    with open(tmp + "/loop.tar", "rb") as file:
        main_loop = load(file)
    main_loop.run()
    assert main_loop.status["iterations_done"] == 20
    expected = np.load(tmp + "/expected.npy")
    np.testing.assert_array_equal(values(main_loop), expected)
else:
    checkpoint = Checkpoint(tmp + "/loop.tar", after_n_batches=7, after_training=False)
    main_loop = begin([checkpoint, FinishAfter(after_n_batches=20)])
    main_loop.run()
    if rank == 0:
        np.save(tmp + "/expected.npy", values(main_loop))
