import os
from platoon_base.system.output import OutputBuffer

reader, writer = os.pipe()
os.close(reader)
buffer = OutputBuffer(writer)
buffer.lenient = True
buffer.write(b"x" * 100_000)
