from job_preamble import ASGD, PlatoonError, np, threading, time, worker

x = np.zeros(1000)
worker.init_shared_params([x], ASGD())
asked = [0, 0, 0]
unexpected = []


def ask(number, question):
    while True:
        try:
            question()
        except PlatoonError:
            assert worker.closed
        except BaseException as exc:
            unexpected.append(exc)
        asked[number] += 1


def look():
    return worker.should_stop, worker.stop_reason, worker.advanced.stop_votes.number, worker.closed


def tell():
    worker.progress(steps=1)


def synchronize():
    worker.sync_params()


for number, question in enumerate((look, tell, synchronize)):
    threading.Thread(target=ask, args=(number, question), daemon=True).start()


def let_them_ask():
    before = list(asked)
    deadline = time.monotonic() + 60
    while any(now < then + 200 for now, then in zip(asked, before)):
        assert time.monotonic() < deadline and not unexpected, (asked, before, unexpected)
        time.sleep(1e-3)


let_them_ask()
worker.close()
let_them_ask()
assert not unexpected, unexpected
