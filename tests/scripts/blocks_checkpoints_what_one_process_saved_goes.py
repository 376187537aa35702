from blocks_preamble import *

if len(sys.argv) > 3:
    with open(tmp + "/loop.tar", "rb") as file:
        main_loop = load(file)
    main_loop.run()
    assert [type(e).__name__ for e in main_loop.extensions][::3] == ["ParameterSync", "StopTogether"]
    same_everywhere(main_loop)
else:
    sync = sys.argv[2] == "sync"
    rule = AllReduceGradients(Scale(0.1)) if sync else Scale(0.1)
    saving = Checkpoint(tmp + "/loop.tar", after_n_batches=3, after_training=False)
    extensions = [StopTogether(), FinishAfter(after_n_batches=6), saving, ParameterSync()]
    loop(network()[0], shard_stream(stream(80)), extensions, rule).run()
