from job_preamble import connect, tell

connect()
try:
    tell("joined")
    while True:
        pass
except KeyboardInterrupt:
    tell("interrupted")
