from job_preamble import EASGD, np, os, time, worker

print("first line", flush=True)
x = np.zeros(10)
worker.init_shared_params([x], EASGD())
count = 0
try:
    while not os.path.exists("go on"):
        count += 1
        x += 0.1
        worker.sync_params()
        worker.progress(epoch=3, steps=1, loss=0.25)
        time.sleep(0.01)
        if count == 20:
            worker.report({"val_loss": 0.5})
            with open(f"unfinished{worker.global_rank}", "w") as file:
                file.write(str(os.getpid()))
            os.rename(file.name, f"ready{worker.global_rank}")
except KeyboardInterrupt:
    print("saved", flush=True)
    raise
print("last line", flush=True)
