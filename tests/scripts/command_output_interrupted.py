import signal
from platoon_base.system import output

output.watch_output()


def interrupt(number, frame):
    if frame.f_code.co_filename == output.__file__:
        raise KeyboardInterrupt


signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
for number in range(20_000):
    try:
        print(number, flush=True)
    except KeyboardInterrupt:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
print(20_000, flush=True)
