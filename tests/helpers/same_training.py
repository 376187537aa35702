"""Trainings whose averaged gradients are compressed between hosts, compared with exact ones."""

import pytest

__all__ = ["require_alike", "require_fewer_bytes"]


def require_alike(exact, compressed):
    """Compare what all workers said: the loss, the bits of the weights, bytes sent."""
    for found in (exact, compressed):
        assert len({bits for _, bits, _ in found}) == 1
    assert exact[0][1] != compressed[0][1]
    assert compressed[0][0] == pytest.approx(exact[0][0], rel=0.05)


def require_fewer_bytes(exact, compressed):
    """Require that ``int8`` sent less than a third of the bytes."""
    assert sum(sent for *_, sent in compressed) < 0.3 * sum(sent for *_, sent in exact)
