from platoon_base.errors import ConfigurationError


def mapped():
    return [line for line in open("/proc/self/maps") if "/dev/shm/platoon" in line]


def refused(call):
    try:
        call()
    except ConfigurationError as exc:
        assert "after close()" in str(exc), exc
    else:
        raise AssertionError("not refused")
