import logging
import os
import tinyframe
from platoon_base import connect

logging.getLogger("tiny_adapter").info("a line of the adapter")
logging.getLogger("tiny_adapter.part").warning("too tiny")
with connect() as worker:
    forked = os.getpid() != tinyframe.IMPORTED_BY
    print("colour", tinyframe.COLOUR, "forked", forked)
