from function_preamble import X, Y, adagrad, function, os, ours, rank

train = function([ours.x, ours.y], ours.loss, adagrad, params=ours.params)
for step in range(100):
    if step == 5 and rank == 1:
        os.kill(os.getpid(), 9)
    try:
        train(X, Y)
    except Exception as exc:
        print("ended in step", step, type(exc).__name__)
        break
