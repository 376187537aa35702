import signal
from platoon_base import connect

worker = connect()
rank = worker.global_rank
if rank % 4 == 3:
    worker.advanced.announce(bound=True)
elif rank % 4 != 2:
    worker.progress(epoch=3, loss=0.5 / (rank + 1))
    worker.advanced.announce(last_epoch=50, limit="patience 3/15")
if rank == 0:
    print("a line of the script")
    worker.report({f"measure_{i}": i / 8 for i in range(12)})
    worker.report({"note": "a text of several words, which is longer than sixty characters, is cut between words"})
signal.pause()
