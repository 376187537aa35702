import sys
from platoon_base import connect

sys.exit([0, 7, 3][connect().global_rank])
