from blocks_preamble import *

main_loop = loop(network()[0], stream(32), [FinishAfter(after_n_epochs=1)])
train, extensions = main_loop.data_stream, list(main_loop.extensions)
assert prepare(main_loop) is main_loop
assert main_loop.data_stream is train
assert main_loop.extensions == extensions
main_loop.run()
