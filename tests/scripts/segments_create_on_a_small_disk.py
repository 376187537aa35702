import sys
from platoon_base.errors import BackendUnavailableError
from platoon_base.shm.segments import Segment

try:
    Segment.create(sys.argv[1], 1 << 21)
except BackendUnavailableError as error:
    print(error)
