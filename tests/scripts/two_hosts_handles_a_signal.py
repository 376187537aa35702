import signal
import time

from hosts_preamble import say, worker

asked = []
signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
worker.barrier("start")
say("waits")
while not asked:
    time.sleep(0.01)
worker.barrier("asked")  # all workers were asked, or this would time out
for again in range(20):  # messages that go the way of a second signal, if there were one
    worker.barrier(f"again {again}")
say(len(asked))
