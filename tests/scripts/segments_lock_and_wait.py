import sys
from platoon_base.shm.segments import Segment

segment = Segment.attach(sys.argv[1])
print(segment.try_lock(7), flush=True)
for line in sys.stdin:
    segment.buffer[0] += 1
    segment.unlock(7)
    print("unlocked", flush=True)
