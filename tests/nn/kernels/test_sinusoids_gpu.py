"""Sinusoids added by a kernel are those of the paper's formula.

These tests run on a GPU, and without one where Triton interprets its kernels (TRITON_INTERPRET=1).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu_marks import CUDA, DEVICE, needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.config import ModelConfig
from heed.nn.kernels import position_forms
from heed.nn.positions import Sinusoidal

pytestmark = [pytest.mark.gpu, needs_kernels]
EXAMPLES = settings(max_examples=40 if CUDA else 12, deadline=None)


@EXAMPLES
@given(
    width=st.sampled_from([2, 8, 64, 200, 256, 258, 768]),
    size=st.sampled_from([(1, 1), (3, 5), (2, 33), (4, 0)]),
    halves=st.booleans(),
    shared=st.booleans(),
    first=st.sampled_from([0, 7, 4000]),
    bf16=st.booleans(),
)
def test_it_is_the_plain_formula(
    width: int, size: tuple[int, int], halves: bool, shared: bool, first: int, bf16: bool
) -> None:
    """For positions of each sequence, and for one row that all share."""
    sinusoids: Any = "halves" if halves else "paired"
    position = Sinusoidal(ModelConfig(width=width, heads=1, sinusoids=sinusoids))
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(*size, width, generator=generator).to(DEVICE).requires_grad_()
    if bf16:
        x = x.detach().bfloat16().requires_grad_()
    rows = torch.arange(1 if shared else size[0])[:, None]
    positions = (first + 3 * rows + torch.arange(size[1])[None]).to(DEVICE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(position_forms, "on_gpu", lambda x: True)
        found = position_forms.embed(position, x, positions)
    expected = position.embed(x.double(), positions)
    assert found.dtype == x.dtype
    assert found.shape == x.shape
    tolerance = 1e-2 if bf16 else 4e-4
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    (dx,) = torch.autograd.grad(found, x, torch.full_like(found, 0.5))
    assert torch.equal(dx, torch.full_like(x, 0.5))


def test_an_encoding_of_the_users_own_keeps_its_formula() -> None:
    class Shifted(Sinusoidal):
        """A subclass has no kernel."""

    x, positions = torch.zeros(1, 3, 8, device=DEVICE), torch.arange(3, device=DEVICE)[None]
    position = Shifted(ModelConfig(width=8, heads=1))
    assert torch.equal(position_forms.embed(position, x, positions), position.embed(x, positions))
