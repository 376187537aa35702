from by_hand_preamble import worker

seen = []
while worker.send_req("next") != "stop":
    x, number = worker.recv_mb()
    assert x.shape == (64, 100) and x.dtype == "float32"
    seen.append(int(number[0]))
    assert (x == number[0] % 10).all()
    worker.send_req("sum", float(x.sum()))
assert seen == sorted(set(seen))
print(len(seen))
