"""The step of Muon for the matrices of many models at once (Jordan et al. 2024; Liu et al. 2025, arXiv 2502.16982)."""

from __future__ import annotations

import torch

__all__ = ["MOMENTUM", "orthogonal", "scale"]

MOMENTUM = 0.95
A, B, C = 3.4445, -4.775, 2.0315  # of five steps of Newton and Schulz, which bring singular values near 1
STEPS = 5


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Return matrices with the same singular vectors, and singular values near 1.

    Parameters
    ----------
    matrices : torch.Tensor, shape (..., rows, columns)
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        square = x @ x.mT
        x = A * x + (B * square + C * square @ square) @ x
    return x.mT if tall else x


def scale(shape: tuple[int, ...]) -> float:
    """Return 0.2 sqrt(max(rows, columns)), by which a step is as large as Adam's at the same rate (2502.16982)."""
    return 0.2 * max(shape[-2:]) ** 0.5
