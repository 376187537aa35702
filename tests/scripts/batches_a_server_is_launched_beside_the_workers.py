from platoon_base import connect
from platoon_base.data import BatchReader

worker = connect()
print("got", [int(x[0]) for x in BatchReader()], flush=True)
