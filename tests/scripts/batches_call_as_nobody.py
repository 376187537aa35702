import os
import socket
import sys
from platoon_base.data.batch_link import connect_link
from platoon_base.errors import ProtocolError

os.setgid(65534), os.setuid(65534)
socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[1])
try:
    connect_link(sys.argv[1])
except ProtocolError as error:
    print(error)
