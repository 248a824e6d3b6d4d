"""The residual stream: x + dropout(branch), and the norm of that sum.

Written out these are three steps, and on a GPU each of them waits for memory. There one kernel does
all three, and one more computes all gradients (`nn/kernels/triton/residual_norm.py`). Its dropout
mask follows from a seed, drawn on the device by torch's own generator: a checkpoint saves the
generator's state, and each replay of a captured graph draws new seeds. A compiler gets the separate
steps, which it fuses by itself. Training on a CPU has the same in C (`residual_norm_cpu.py`).

The dropout of the embedding is the stream's as well. There is no x yet to add to, so the embedding
is the first branch, and the first norm's kernel computes dropout(branch).

Shapes: b batch, n tokens, w model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from heed.nn.kernels.availability import on_gpu, trains_on_cpu
from heed.nn.kernels.custom_op import once_differentiable

if TYPE_CHECKING:
    from heed.nn.kernels.parameter_gradients import ParameterStream

MAX_WIDTH = 8192
"""The kernel holds whole rows; it does not take wider ones."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SEED_SIZE = 2
"""Numbers per seed. At multiples of 16 bytes all pointers are alike to Triton: it compiles once."""
MAX_SUBLAYERS = 3
"""Of a block: self-attention, cross-attention, feed-forward."""


class DropoutSeeds:
    """The dropout seeds of one pass, in the order of use; without any, dropout is torch's own."""

    def __init__(self, seeds: list[Tensor]) -> None:
        self._seeds = iter(seeds)

    def take(self) -> Tensor | None:
        """The next seed. A compiled block has no use for seeds, and takes none."""
        return None if torch.compiler.is_compiling() else next(self._seeds, None)


class ResidualStream(NamedTuple):
    """The residual stream of one pass, with the branch that is not added yet.

    Adding a branch and normalizing the sum are one kernel. Pre-norm, that norm belongs to the next
    sublayer, perhaps of the next block: a branch waits until then. Under torch.compile no branch
    waits, or the first block, which has none before it, would be compiled separately.

    A named tuple, because sharded training (FSDP) finds a block's tensors in tuples alone.
    """

    x_bnw: Tensor | None
    """None as long as the embedding is the branch that waits."""
    branch_bnw: Tensor | None
    dropout: nn.Dropout
    pre_norm: bool
    seeds: DropoutSeeds

    @classmethod
    def begin(
        cls,
        embedded_bnw: Tensor,
        dropout: nn.Dropout,
        *,
        pre_norm: bool,
        blocks: nn.ModuleList,
        sublayers: int,
    ) -> ResidualStream:
        """The stream that enters the first of these blocks, each of so many sublayers.

        It is dropout(embedded): where the first norm's kernel can compute that, it waits for it.
        """
        waits = pre_norm and _needs_seeds(embedded_bnw, dropout) and not _is_compiled(blocks)
        x_bnw = None if waits else dropout(embedded_bnw)
        seeds = draw_seeds(embedded_bnw, dropout, len(blocks) + 1, MAX_SUBLAYERS)
        in_order: list[Tensor] = []
        for of_block in () if seeds is None else seeds.unbind():
            first, *others = of_block.unbind()[:sublayers]
            in_order += [first, *others] if pre_norm else [*others, first]
        branch_bnw = embedded_bnw if waits else None
        return cls(x_bnw, branch_bnw, dropout, pre_norm, DropoutSeeds(in_order))

    def may_run_blocks(self) -> bool:
        """Whether one kernel may compute the next blocks (`block`): asked before all else."""
        return self.pre_norm and self.x_bnw is not None and trains_on_cpu(self.x_bnw)

    def normalize(self, norm: nn.Module) -> tuple[ResidualStream, Tensor]:
        """The stream with its branch added, and what a sublayer reads: pre-norm, the norm of it."""
        if not self.pre_norm:
            return self.add_pending_branch()
        seed = self.seeds.take()
        x_bnw, y_bnw = add_norm(*self[:2], norm, self.dropout, seed=seed, for_linear=True)
        return self._with(x_bnw), y_bnw

    def add(self, branch_bnw: Tensor, norm: nn.Module) -> ResidualStream:
        """The stream with a sublayer's output: post-norm, the norm of their sum."""
        if not self.pre_norm:
            seed = self.seeds.take()
            return self._with(add_norm(self.x_bnw, branch_bnw, norm, self.dropout, seed=seed)[1])
        waiting = self._with(self.x_bnw, branch_bnw)
        return waiting.add_pending_branch()[0] if torch.compiler.is_compiling() else waiting

    def add_pending_branch(self) -> tuple[ResidualStream, Tensor]:
        """The stream with its branch, if any, added now by torch's own steps, and its vectors."""
        x_bnw = _add(*self[:2], self.dropout)
        return self._with(x_bnw), x_bnw

    def finish(self, norm: nn.Module, *, for_linear: bool = False) -> Tensor:
        """The norm of the stream after the last block; `for_linear` as in `add_norm`."""
        seed = self.seeds.take()
        return add_norm(*self[:2], norm, self.dropout, seed=seed, for_linear=for_linear)[1]

    def _with(self, x_bnw: Tensor | None, branch_bnw: Tensor | None = None) -> ResidualStream:
        return ResidualStream(x_bnw, branch_bnw, self.dropout, self.pre_norm, self.seeds)


def add_norm(
    x_bnw: Tensor | None,
    branch_bnw: Tensor | None,
    norm: nn.Module,
    dropout: nn.Dropout,
    *,
    seed: Tensor | None = None,
    for_linear: bool = False,
) -> tuple[Tensor, Tensor]:
    """x + dropout(branch), where one of the two may be None, and the norm of that.

    With `for_linear` only linear layers read the norm: under autocast the kernel writes it in their
    dtype. On a GPU, dropout without a seed is torch's own; on a CPU the kernel draws its seed.
    """
    dropped = _probability(dropout) if branch_bnw is not None else 0.0
    seeded = dropped == 0.0 or (seed is not None and dropped < 1.0)
    if seeded and _has_kernel(x_bnw, branch_bnw, norm):
        from heed.nn.kernels.parameter_gradients import parameter_stream

        parameters = cast(Tensor, norm.weight), getattr(norm, "bias", None)
        kind, stream = (isinstance(norm, nn.LayerNorm), norm.eps), parameter_stream(*parameters)
        run: Any = _AddNorm.apply
        return run(x_bnw, branch_bnw, *parameters, seed, *kind, dropped, for_linear, stream)
    if x_bnw is not None and dropped < 1.0 and trains_on_cpu(x_bnw):
        from heed.nn.kernels.residual_norm_cpu import add_norm_in_c

        found = add_norm_in_c(x_bnw, branch_bnw, norm, dropped, for_linear=for_linear)
        if found is not None:
            return found
    x_bnw = _add(x_bnw, branch_bnw, dropout)
    return x_bnw, norm(x_bnw)


def draw_seeds(x: Tensor, dropout: nn.Dropout, *size: int) -> Tensor | None:
    """Dropout seeds [*size, 2] for one pass; None where they are not needed."""
    if not _needs_seeds(x, dropout):
        return None
    return torch.randint(2**63 - 1, (*size, SEED_SIZE), device=x.device)


def _needs_seeds(x: Tensor, dropout: nn.Dropout) -> bool:
    return _probability(dropout) > 0.0 and on_gpu(x)


def _is_compiled(blocks: nn.ModuleList) -> bool:
    """Whether a compiler gets these blocks, alone or with all around them."""
    if torch.compiler.is_compiling():
        return True
    return any(block._compiled_call_impl is not None for block in blocks)


def _add(x: Tensor | None, branch: Tensor | None, dropout: nn.Dropout) -> Tensor:
    """x + dropout(branch) by torch's own steps; of x and the branch one may be None."""
    if branch is None:
        return cast(Tensor, x)
    added = branch if _probability(dropout) == 0.0 else dropout(branch)
    return added if x is None else x + added


def _probability(dropout: nn.Dropout) -> float:
    return dropout.p if dropout.training else 0.0


def _has_kernel(x: Tensor | None, branch: Tensor | None, norm: nn.Module) -> bool:
    parts = [part for part in (x, branch) if part is not None]
    if not on_gpu(parts[0]) or torch.compiler.is_compiling() or parts[0].shape[-1] > MAX_WIDTH:
        return False
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm) or norm.eps is None:
        return False
    return all(part.dtype in DTYPES for part in (*parts, norm.weight))


class _AddNorm(torch.autograd.Function):
    """The kernels as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        branch: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        seed: Tensor | None,
        centered: bool,
        eps: float,
        dropped: float,
        for_linear: bool,
        parameter_stream: ParameterStream | None,
    ) -> tuple[Tensor, Tensor]:
        from heed.nn.kernels.gradient_sums import wants_sums
        from heed.nn.kernels.triton.residual_norm import NormConfig, add_and_norm

        ctx.config = NormConfig(centered, eps, dropped)
        ctx.dtypes = tuple(None if part is None else part.dtype for part in (x, branch))
        known = [dtype for dtype in ctx.dtypes if dtype is not None]
        sum_dtype = torch.promote_types(known[0], known[-1])
        dtype = _normed_dtype(sum_dtype, weight.device.type, for_linear=for_linear)
        stream, normed, moments = add_and_norm(x, branch, seed, weight, bias, ctx.config, dtype)
        ctx.save_for_backward(stream, moments, seed, weight)
        ctx.parameters, ctx.stream = (weight, bias), parameter_stream
        ctx.sums_branch = branch is not None and wants_sums(branch)
        ctx.set_materialize_grads(False)
        return stream, normed

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_stream: Tensor | None, d_normed: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        from heed.nn.kernels.gradient_sums import attach_sums
        from heed.nn.kernels.triton.column_sum import add_parts
        from heed.nn.kernels.triton.residual_norm import add_and_norm_backward

        stream, moments, seed, weight = ctx.saved_tensors
        has_bias = ctx.parameters[1] is not None
        if d_normed is None:
            d_normed = torch.zeros_like(stream)
        dx, d_branch, sums, branch_sums = add_and_norm_backward(
            stream,
            moments,
            seed,
            weight,
            ctx.config,
            d_stream,
            d_normed,
            ctx.dtypes,
            has_bias,
            ctx.sums_branch,
        )
        if d_branch is not None and branch_sums is not None:
            attach_sums(d_branch, branch_sums)

        def parameter_gradients() -> tuple[Tensor, Tensor | None]:
            totals = add_parts(sums).to(weight.dtype).view(-1, len(weight))
            return totals[0], totals[1] if has_bias else None

        gradients: tuple[Tensor | None, Tensor | None] = None, None
        if ctx.stream is None:
            gradients = parameter_gradients()
        else:
            ctx.stream.add_gradients(ctx.parameters, parameter_gradients, (sums,))
        return dx, d_branch, *gradients, *[None] * 6


def _normed_dtype(sum_dtype: torch.dtype, device: str, *, for_linear: bool) -> torch.dtype:
    """A norm's output dtype. Under autocast torch gives float32, which a linear layer narrows."""
    if not torch.is_autocast_enabled(device):
        return sum_dtype
    return torch.get_autocast_dtype(device) if for_linear else torch.float32
