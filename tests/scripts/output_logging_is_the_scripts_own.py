import logging
from platoon_base import connect

logging.getLogger("library").info("not asked for")
logging.getLogger("platoon_base.library").info("ours")
logging.getLogger("library").warning("beware")
logging.basicConfig(level=logging.INFO, format="<%(message)s>")
logging.getLogger("library").info("asked for")
connect()
