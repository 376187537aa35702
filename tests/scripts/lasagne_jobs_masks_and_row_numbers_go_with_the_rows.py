from lasagne_preamble import *

x, y, mask = np.arange(11.0), -np.arange(11.0), np.arange(11) % 2
for a, b, m in iterate_minibatches(x, y, mask, 3, True, epoch=1):
    assert (b == -a).all() and (m == a % 2).all()
rows = [row for (batch,) in iterate_minibatches(np.arange(11), batch_size=4, uneven="keep") for row in batch]
by_mask = evaluate(lambda a, b, m: [(a * m).mean(), (b * (1 - m)).mean()], x, y, mask, 2)
by_row = evaluate(lambda rows: x[rows].mean(), np.arange(11), batch_size=3)
named = evaluate(lambda a, b: (a - b).mean(), inputs=x, targets=y, batch_size=100, worker=worker)
np.testing.assert_allclose([*by_mask, by_row, named], [25 / 11, -30 / 11, 5.0, 10.0], rtol=1e-12)
assert sorted(sum(worker.gather([int(row) for row in rows]), [])) == list(range(11))
