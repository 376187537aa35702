from blocks_preamble import *
import contextlib
import io


def run(ours):
    cost, error = network()
    rule = Momentum(0.1, 0.9)
    valid, train = stream(45, seed=1), stream(60, shuffled=True)
    extensions = [
        DataStreamMonitoring([cost, error], valid, prefix="valid"),
        TrainingDataMonitoring([cost], prefix="train", after_epoch=True),
        Timing(),
        FinishAfter(after_n_epochs=3),
        Printing(),
        Checkpoint(tmp + "/alone.tar", every_n_batches=4),
    ]
    if ours:
        extensions[:2] = [
            DistributedMonitoring([cost, error], valid, prefix="valid"),
            DistributedTrainingMonitoring([cost], prefix="train", after_epoch=True),
        ]
        extensions[3:3] = [StopTogether(), ParameterSync(EASGD())]
        whole, train = train, shard_stream(train)
        assert train is whole
        rule = AllReduceGradients(rule)
    main_loop = loop(cost, train, extensions, rule)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main_loop.run()
    assert main_loop.extensions is extensions
    rows = [
        (row, name, float(value))
        for row in main_loop.log
        for name, value in main_loop.log[row].items()
        if "cost" in name or "error" in name
    ]
    lines = [line for line in out.getvalue().splitlines() if "time" not in line and "uuid" not in line]
    return values(main_loop), rows, lines


(a, rows_a, out_a), (b, rows_b, out_b) = run(False), run(True)
np.testing.assert_array_equal(a, b)
assert rows_a == rows_b and out_a == out_b and any("valid_cost" in line for line in out_a)
