import os
import sys
from platoon_base.errors import PlatoonError
from platoon_base.job import attaching, join  # noqa: F401, loads what join needs

os.setgid(65534), os.setuid(65534)  # from here on this process may not even read the package
folder, words = sys.argv[1:]
for path, flags in ((folder + "/control", os.O_RDWR), (folder, os.O_RDONLY), (words, os.O_RDONLY)):
    try:
        os.close(os.open(path, flags))
    except PermissionError:
        continue
    sys.exit(f"{path} can be opened")
try:
    join(folder)
except (PlatoonError, OSError) as error:
    print(f"refused: {error}")
