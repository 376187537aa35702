import time
from laboratory import Laboratory

with Laboratory(2, delay_ms=1) as there:
    runs = [host.start("sleep", 1000).pid for host in there.hosts]
    print(there.folder, there.switch.pid, *runs, *(host.init for host in there.hosts), flush=True)
    time.sleep(1000)
