import time
from platoon_base import connect

worker = connect()
for k in range(30):
    worker.report({f"value {k} {i} {'x' * 60}": float(k) for i in range(20)})
    time.sleep(0.1)
