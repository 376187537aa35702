from platoon_base.job import attaching, joining


def fail(*args, **kwargs):
    raise RuntimeError("oops")


attaching.Worker = fail
joining.connect()
