from job_preamble import connect


def train(worker):
    x = 41
    breakpoint()
    worker.report({"x": x})
    print("x is", x)


train(connect())
