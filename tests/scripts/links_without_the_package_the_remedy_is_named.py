import sys

sys.modules["cryptography"] = None
from platoon_base.links.stream import Cipher

try:
    Cipher(bytes(32))
except Exception as exc:
    print(type(exc).__name__, exc)
