"""The search loop: one for every strategy, for translators, language models and ensembles.

Inputs are sorted by length, so that batches have little padding, and results are returned in the
given order. Every few tokens the loop checks which inputs are finished, and continues with the rest
in a smaller decode state. On a GPU a step is captured as a CUDA graph, once per size of the state.

Shapes: b inputs, k hypotheses per input, p prompt tokens, m source tokens, v vocabulary.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heed.data.batching.padding import pad_sequences
from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS, SpecialTokens
from heed.decode import batch_plan
from heed.decode.cpu_threads import map_batches
from heed.decode.model_step import (
    GenerativeModel,
    ModelStep,
    Prompt,
    build_model_step,
    ensemble_logits,
)
from heed.decode.state import DecodeState, GrowAxis, ShapeKey, StateTensors, concat_padded
from heed.decode.strategy import DecodingCancelledError, Hypothesis, IsCancelled, Strategy
from heed.errors import HeedWarning
from heed.models.inference import evaluating, nan_error, position_limit
from heed.nn.attention import has_head_edits
from heed.nn.kernels.prepacked_weights import prepack_weights

if TYPE_CHECKING:
    from heed.decode.cuda_graph import Step
    from heed.nn.kernels.quantized_linear import Int8Weights

CHECK_EVERY, CHECK_EVERY_ON_CPU = 4, 2
"""Tokens between two checks for finished inputs. On a GPU a check reads the flags of the step
before, so that the GPU has a step to work on in the meantime. On a CPU a check is free."""
CAPTURED_MEMORY = 0.25
"""Share of a GPU's free memory that captured states may hold. Capturing them again and again would
take most of the time."""
PACK_FROM = 1024
"""Tokens of all hypotheses from which prepacking the weights for a CPU's kernels pays."""


class Search:
    """Decoding with one strategy. Reuse it: on a GPU the first use captures the steps.

    Several models are an ensemble: the mean of their probabilities. `batch_size` is the number of
    inputs per batch; unset, more on a GPU. `capture` is whether steps are captured as CUDA graphs;
    unset, those of Transformers are on a GPU. `begin` is the first token a translator's decoder
    reads, unset the begin token of `specials`.

    With `batch_invariant` the results of an input do not depend on the other inputs: lengths are
    padded to fixed sizes, only inputs of one size are decoded together, and the weights are always
    prepacked, since those matrix kernels sum each row in the same order in a batch of any size.
    That holds to the last bit on a CPU; on a GPU kernels choose their order by the batch.

    With `int8` the linear layers of these models compute with those weights while decoding.
    """

    sequential = False
    """Whether batches run one after another, because they share the state of this object."""

    def __init__(
        self,
        models: Sequence[GenerativeModel],
        strategy: Strategy,
        *,
        batch_size: int | None = None,
        capture: bool | None = None,
        begin: int | None = None,
        specials: SpecialTokens = DEFAULT_SPECIALS,
        batch_invariant: bool = False,
        int8: Int8Weights | None = None,
    ) -> None:
        # A copy, as another search may use the strategy with another end token.
        self.models, self.strategy = list(models), copy(strategy)
        self.specials, self.strategy.eos = specials, specials.eos
        self.strategy.int8_library = None if int8 is None else int8.library
        self.begin = specials.bos if begin is None else begin
        self.model_steps = [build_model_step(model, i, int8) for i, model in enumerate(models)]
        self.device = self.models[0].embedding.table.weight.device
        on_gpu = self.device.type == "cuda"
        default = batch_plan.INPUTS_ON_GPU if on_gpu else batch_plan.INPUTS_ON_CPU
        self.batch_size = batch_size or default
        if capture is None:
            capture = on_gpu and all(model.config.family == "transformer" for model in models)
        self.capture = capture
        self.suppressed_ids = torch.tensor(
            specials.suppressed_ids, dtype=torch.long, device=self.device
        )
        self.batch_invariant, self.int8 = batch_invariant, int8
        self.sizes = batch_plan.StateSizes(bucketed=self.capture, fixed_lengths=batch_invariant)
        self._captured: dict[ShapeKey, tuple[DecodeState, Step]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.capture else (0, 0)

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        *,
        max_ratio: float = 2.0,
        max_extra: int = 10,
        numbers: Sequence[int] | None = None,
        is_cancelled: IsCancelled | None = None,
    ) -> list[list[Hypothesis]]:
        """The hypotheses for each source (ids without an end token), the best first.

        An output has at most max_ratio times the source's tokens plus max_extra. `numbers` identify
        the sources for sampling: equal numbers get equal random numbers, in whatever batch.
        `is_cancelled` is called every few tokens.
        """
        lengths = [len(source) + 1 for source in sources]
        limits = batch_plan.length_limits(
            [n - 1 for n in lengths],
            max_ratio=max_ratio,
            max_extra=max_extra,
            max_positions=position_limit(self.models),
        )

        def build_prompt(indices: list[int]) -> Prompt:
            source, real = self._pad([[*sources[i], self.specials.eos] for i in indices])
            prompt = torch.full_like(source[:, :1], self.begin)
            groups = batch_plan.plan_groups([lengths[i] for i in indices], source.shape[1])
            return Prompt(prompt, None, source, real, groups)

        return self._decode_all(lengths, limits, build_prompt, numbers, is_cancelled)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int | Sequence[int],
        numbers: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """Continue each prompt with a language model, by at most `max_tokens` tokens.

        `max_tokens` is one limit for all prompts, or one for each. A prompt is ids with the begin
        token; the hypotheses hold the new tokens only.
        """
        lengths = [len(prompt) for prompt in prompts]
        limits = [max_tokens] * len(lengths) if isinstance(max_tokens, int) else list(max_tokens)
        max_positions = position_limit(self.models)
        if max_positions is not None:
            limits = [
                max(1, min(limit, max_positions - n))
                for limit, n in zip(limits, lengths, strict=True)
            ]

        def build_prompt(indices: list[int]) -> Prompt:
            return Prompt(*self._pad([list(prompts[i]) for i in indices]))

        return self._decode_all(lengths, limits, build_prompt, numbers)

    def dry_step(self, prompt: Prompt) -> None:
        """Run the prefill and one step, to see which kernels decoding launches."""
        inputs = len(prompt.prompt_bp)
        with evaluating(*self.models):
            first, (logits, attention) = self._prefill(prompt, [1] * inputs, list(range(inputs)))
            state = first.new_blank(self.sizes.slots(inputs), self.sizes.capacity(0))
            state.copy_from(first, torch.arange(inputs, device=self.device))
            self._choose_first(state, logits, attention)
            self._step(state)

    def _pad(self, sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
        length = self.sizes.padded_length(max(map(len, sequences)))
        ids, real = pad_sequences([np.array(ids) for ids in sequences], length, self.specials.pad)
        return ids.to(self.device), real.to(self.device)

    def _decode_all(
        self,
        lengths: Sequence[int],
        limits: Sequence[int],
        build_prompt: Callable[[list[int]], Prompt],
        numbers: Sequence[int] | None,
        is_cancelled: IsCancelled | None = None,
    ) -> list[list[Hypothesis]]:
        numbers = range(len(lengths)) if numbers is None else numbers
        results: list[list[Hypothesis]] = [[] for _ in lengths]
        batches = list(self._plan_batches(lengths, limits))

        def decode(indices: list[int]) -> list[list[Hypothesis]]:
            # Copies of the first input fill up a batch of a fixed size, and are dropped.
            rows = indices + indices[:1] * (self._batch_rows(len(indices)) - len(indices))
            batch_limits, batch_numbers = [limits[i] for i in rows], [numbers[i] for i in rows]
            return self._decode_batch(
                build_prompt(rows), batch_limits, batch_numbers, is_cancelled=is_cancelled
            )

        pack = self.batch_invariant or self.strategy.beams * sum(lengths) >= PACK_FROM
        int8 = nullcontext() if self.int8 is None else self.int8.in_use()
        with evaluating(*self.models), int8, prepack_weights(self.models if pack else []):
            # Captured states are reused by the next batch: no two batches may run at once.
            parallel = self.device.type == "cpu" and not (self.capture or self.sequential)
            outputs = map_batches(decode, batches, parallel=parallel)
            for indices, batch in zip(batches, outputs, strict=True):
                for i, hypotheses in zip(indices, batch, strict=False):
                    results[i] = hypotheses
        return results

    def _batch_rows(self, inputs: int) -> int:
        """The rows of a batch of so many inputs: more only in a batch-invariant search."""
        return self.sizes.slots(inputs) if self.batch_invariant else inputs

    def _plan_batches(self, lengths: Sequence[int], limits: Sequence[int]) -> Iterator[list[int]]:
        """The indices of each batch's inputs, no more than memory holds."""
        if not self.batch_invariant:
            yield from self._plan_equal(lengths, limits)
            return
        by_size: dict[int, list[int]] = {}
        for i, length in enumerate(lengths):
            by_size.setdefault(self.sizes.padded_length(length), []).append(i)
        for indices in by_size.values():
            part = [lengths[i] for i in indices], [limits[i] for i in indices]
            for batch in self._plan_equal(*part):
                yield [indices[row] for row in batch]

    def _plan_equal(self, lengths: Sequence[int], limits: Sequence[int]) -> Iterator[list[int]]:
        """Batches of inputs that may all be decoded together."""
        beams, cell_bytes = self.strategy.beams, batch_plan.cache_bytes_per_token(self.models)
        cells = [n + beams * limit for n, limit in zip(lengths, limits, strict=True)]
        if self.device.type != "cuda":
            step_bytes = beams * batch_plan.step_bytes_per_beam(self.models)
            sizes = [n * cell_bytes + step_bytes for n in cells]
            costs = batch_plan.cpu_costs(lengths, sizes)
            return batch_plan.plan_batches(lengths, self.batch_size, costs=costs, max_cost=1.0)
        memory = int(batch_plan.STATE_MEMORY * self._free_memory())
        max_cells = memory // cell_bytes
        return batch_plan.plan_batches(lengths, self.batch_size, costs=cells, max_cost=max_cells)

    def _decode_batch(
        self,
        prompt: Prompt,
        limits: list[int],
        numbers: list[int],
        *,
        is_cancelled: IsCancelled | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode until all inputs of a batch are finished."""
        results: list[list[Hypothesis]] = [[] for _ in limits]
        indices, longest, generated = list(range(len(limits))), max(limits), 1
        first, (logits, attention) = self._prefill(prompt, limits, numbers)
        state, step = self._resize(first, indices, self.sizes.capacity(0))
        self._choose_first(state, logits, attention)
        self._after_step(state)
        poll = state.poll_done()
        check_every = CHECK_EVERY_ON_CPU if self.device.type == "cpu" else CHECK_EVERY
        while generated < longest:
            if generated % check_every == 0 or generated == state.capacity:
                if is_cancelled is not None and is_cancelled():
                    raise DecodingCancelledError
                done = poll()[: len(indices)]
                unfinished = [row for row, is_done in enumerate(done) if not is_done]
                if not unfinished:
                    break
                finished = [row for row, is_done in enumerate(done) if is_done]
                # Finished inputs fill up a batch of a fixed size.
                unfinished += finished[: self._batch_rows(len(unfinished)) - len(unfinished)]
                rows = batch_plan.compact_order(sorted(unfinished))
                full = generated == state.capacity
                if full or self.sizes.should_compact(len(rows), state.slots):
                    self._read_results(state, indices, finished, results)
                    capacity = self.sizes.capacity(generated) if full else state.capacity
                    state, step = self._resize(state, rows, capacity)
                    indices = [indices[row] for row in rows]
            if (generated + 1) % check_every == 0 or generated + 1 == state.capacity:
                poll = state.poll_done()
            step()
            self._after_step(state)
            generated += 1
        self._read_results(state, indices, list(range(len(indices))), results)
        return results

    def _after_step(self, state: DecodeState) -> None:
        """Hook, called after every decoding step; overridden for streaming."""

    def _prefill(
        self, prompt: Prompt, limits: list[int], numbers: list[int]
    ) -> tuple[DecodeState, tuple[Tensor, Tensor | None]]:
        """Read the prompts: a decode state without capacity, and the first token's logits."""
        beams = self.strategy.beams
        prompt_cells = self.sizes.prompt_cells(prompt.prompt_bp.shape[1])
        entries = self.strategy.begin(limits, numbers, self.device)
        entries |= _shared_tensors(prompt, beams, prompt_cells)
        if prompt.source_bm is not None and self.strategy.needs_attention:
            coverage = torch.zeros(len(limits), beams, prompt.source_bm.shape[1])
            entries["coverage"] = coverage.to(self.device), None
        outputs = []
        for model_step in self.model_steps:
            logits, attention, model_entries = self._prefill_model(model_step, prompt, prompt_cells)
            entries |= model_entries
            outputs.append((logits, attention))
        tensors = {name: tensor for name, (tensor, _) in entries.items()}
        grow_axes = {name: grow for name, (_, grow) in entries.items() if grow is not None}
        state = DecodeState(tensors, grow_axes, slots=len(limits), capacity=0)
        return state, self._combine(outputs)

    def _prefill_model(
        self, model_step: ModelStep, prompt: Prompt, prompt_cells: int
    ) -> tuple[Tensor, Tensor | None, StateTensors]:
        """One model's logits and attention for the first token, and its state tensors."""
        all_logits, attentions, parts = list[Tensor](), list[Tensor](), list[StateTensors]()
        for group in prompt.split_groups():
            logits, attention, cache = model_step.prefill(
                group, with_attention=self.strategy.needs_attention
            )
            all_logits.append(logits)
            attentions += [] if attention is None else [attention]
            parts.append(model_step.state_tensors(cache, self.strategy.beams, prompt_cells))
        entries: StateTensors = {
            name: (concat_padded([part[name][0] for part in parts]), grow)
            for name, (_, grow) in parts[0].items()
        }
        return torch.cat(all_logits), concat_padded(attentions) if attentions else None, entries

    def _expand_slots(self, x_b: Tensor, state: DecodeState) -> Tensor:
        """Repeat each row for every hypothesis, and pad with zeros for unused slots."""
        x_slots = F.pad(x_b, (0, 0, 0, state.slots - x_b.shape[0]))
        return x_slots[:, None].expand(-1, self.strategy.beams, -1)

    def _resize(
        self, state: DecodeState, rows: list[int], capacity: int
    ) -> tuple[DecodeState, Step]:
        """Move these inputs to a state of the size they need, and return it with its step."""
        # A captured graph replays the attention it was captured with: no edit made since.
        captures = self.capture and not any(map(has_head_edits, self.models))
        if not self.capture:
            resized = state.compact(rows)
            resized = resized if capacity == state.capacity else resized.grow(capacity)
            return resized, partial(self._step, resized)
        slots = self.sizes.slots(len(rows))
        key = state.shape_key(slots, capacity)
        if captures and key in self._captured:
            resized, step = self._captured[key]
        elif captures:
            self._evict_captured()
            resized = state.new_blank(slots, capacity)
            self._captured[key] = resized, (step := self._capture_step(resized))
        else:
            resized = state.new_blank(slots, capacity)
            step = partial(self._step, resized)
        resized.copy_from(state, torch.tensor(rows, device=self.device))
        return resized, step

    def _capture_step(self, state: DecodeState) -> Step:
        from heed.decode.cuda_graph import capture_step

        step = partial(self._step, state)
        try:
            return capture_step(step, self._pool)
        except RuntimeError as error:
            self.capture = False
            warnings.warn(f"Decoding without CUDA graphs: {error}", HeedWarning, stacklevel=2)
            return step

    def _evict_captured(self) -> None:
        """Drop the oldest captured states while they hold too much memory."""
        limit = CAPTURED_MEMORY * self._free_memory()
        while self._captured_bytes() > limit:
            del self._captured[next(iter(self._captured))]

    def _captured_bytes(self) -> int:
        return sum(state.nbytes() for state, _ in self._captured.values())

    def _free_memory(self) -> int:
        """Free GPU memory, plus what captured decode states would release."""
        free, _ = torch.cuda.mem_get_info(self.device)
        idle = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + idle + self._captured_bytes()

    def _read_results(
        self,
        state: DecodeState,
        indices: list[int],
        rows: list[int],
        results: list[list[Hypothesis]],
    ) -> None:
        """Store the hypotheses of these rows at the indices of their inputs."""
        rows_r = torch.tensor(rows, dtype=torch.long, device=self.device)
        outputs = self.strategy.read_results(state, rows_r)
        for row, hypotheses in zip(rows, outputs, strict=True):
            if not hypotheses or any(math.isnan(h.score) for h in hypotheses):
                raise nan_error(self.models, "nothing can be decoded")
            results[indices[row]] = hypotheses

    def _step(self, state: DecodeState) -> None:
        """Generate the next token of every hypothesis: fixed shapes, no synchronization."""
        state.show_own_cells()
        with_attention = self.strategy.needs_attention
        outputs = [
            model_step.next_logits(state, with_attention=with_attention)
            for model_step in self.model_steps
        ]
        state.next_cells.add_(self.strategy.beams)
        self._choose(state, *self._combine(outputs))

    def _combine(
        self, outputs: Sequence[tuple[Tensor, Tensor | None]]
    ) -> tuple[Tensor, Tensor | None]:
        """The ensemble's logits, without tokens that are never generated, and mean attention."""
        logits = ensemble_logits([logits for logits, _ in outputs])
        attentions = [attention for _, attention in outputs if attention is not None]
        if self.specials.suppressed_ids:
            logits.index_fill_(-1, self.suppressed_ids, -torch.inf)
        return logits, torch.stack(attentions).mean(0) if attentions else None

    def _choose_first(
        self, state: DecodeState, logits_bv: Tensor, attention_bm: Tensor | None
    ) -> None:
        """Choose the first token: all hypotheses of an input start from the same logits."""
        attention = None if attention_bm is None else self._expand_slots(attention_bm, state)
        self._choose(state, self._expand_slots(logits_bv, state), attention)

    def _choose(self, state: DecodeState, logits_bkv: Tensor, attention_bkm: Tensor | None) -> None:
        parents = self.strategy.choose(logits_bkv, attention_bkm, state)
        state.generated.add_(1)
        if parents is not None:
            state.reorder(parents)
            for model_step in self.model_steps:
                model_step.reorder(state, parents)


def _shared_tensors(prompt: Prompt, beams: int, prompt_cells: int) -> StateTensors:
    """The state tensors that all models share: visible cells, prompt lengths and the source."""
    ids, real = prompt.prompt_bp, prompt.prompt_real
    visible_bp = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    visible_bp = F.pad(visible_bp, (0, prompt_cells - ids.shape[1]))
    length = torch.full_like(ids[:1, :1], ids.shape[1])
    tensors: StateTensors = {
        "visible": (visible_bp[:, None].expand(-1, beams, -1), GrowAxis(axis=2, cells=beams)),
        "offset": (length if real is None else real.sum(dim=1, keepdim=True), None),
    }
    if prompt.source_real is not None:
        tensors["source_real"] = prompt.source_real, None
        tensors["source_ends"] = prompt.source_real.sum(dim=1), None
        positions = torch.arange(prompt.source_real.shape[1], device=ids.device)
        tensors["source_positions"] = positions[None], None
    return tensors
