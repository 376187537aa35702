from platoon_base.errors import ConfigurationError
from refusing import raises


def mapped():
    return [line for line in open("/proc/self/maps") if "/dev/shm/platoon" in line]


def refused(call):
    with raises(ConfigurationError, "after close()"):
        call()
