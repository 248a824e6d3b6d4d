"""The batch plan: length limits, which inputs are decoded together, and sizes of decode states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heed.models import LanguageModel, Translator

INPUTS_ON_CPU, INPUTS_ON_GPU = 256, 2048
"""Inputs per batch, unless `decode.batch_size` is set."""
MAX_BATCH_TOKENS = 1 << 14
"""Source or prompt tokens per batch, padding included: longer inputs make smaller batches."""
CPU_MEMORY = 1 << 31
"""On a CPU, bytes for one batch, if all outputs reach their limit."""
STATE_MEMORY = 0.125
"""On a GPU, the share of free memory for one decode state, if all outputs reach their limit."""
CAPACITY_STEP = 16
"""Tokens that the capacity grows by at a time, where shapes are not bucketed."""
MIN_SLOTS, MIN_CAPACITY = 8, 32
"""The smallest decode state where shapes are bucketed."""
MIN_GROUP = 64
"""Fewest inputs that are encoded as a group, separately from longer ones."""
MIN_INPUTS = 2
"""Inputs of a batch-invariant batch: a product with one row alone is summed in another order."""
ROW_STEP = 4
"""Rows by which such batches grow: a CPU's kernels are compiled for each shape of a product."""
MIN_FIXED_LENGTH = 24
"""The smallest size that lengths are padded to where they have fixed sizes: most sentences have it,
and are decoded together."""
WIDE = 64
"""Slots from which on there are two bucket sizes per octave: there, unused slots take time."""
COMPACT_BELOW = 0.95
"""Without buckets, a state is compacted when at most this share of its inputs is unfinished."""


def length_limits(
    lengths: Sequence[int], *, max_ratio: float, max_extra: int, max_positions: int | None
) -> list[int]:
    """The maximum number of generated tokens for sources of these lengths."""
    limits = [max(1, int(max_ratio * length) + max_extra) for length in lengths]
    return limits if max_positions is None else [min(limit, max_positions) for limit in limits]


def plan_batches(
    lengths: Sequence[int],
    size: int,
    *,
    costs: Sequence[float] | None = None,
    max_cost: float = MAX_BATCH_TOKENS,
) -> Iterator[list[int]]:
    """Batches of inputs of similar length, the longest first, so that memory peaks at the start.

    A batch has at most `size` inputs, and its size times its largest cost is at most `max_cost`.
    The cost of an input is its length unless `costs` are given.
    """
    order, costs = sorted(range(len(lengths)), key=lambda i: -lengths[i]), costs or lengths
    batch, largest = list[int](), 0.0
    for i in order:
        largest = max(largest, costs[i])
        if batch and (len(batch) == size or largest * (len(batch) + 1) > max_cost):
            yield batch
            batch, largest = [], costs[i]
        batch.append(i)
    if batch:
        yield batch


def plan_groups(lengths: Sequence[int], padded_length: int) -> list[tuple[int, int]]:
    """Group the inputs of a batch, sorted longest first: how many, and padded to which length.

    The first group is padded to the length of the whole batch.
    """
    groups = [(0, padded_length)]
    for length in lengths:
        count, group_length = groups[-1]
        shorter = min(group_length, bucket_size(length))
        if shorter < group_length and count >= MIN_GROUP:
            groups.append((1, shorter))
        else:
            groups[-1] = count + 1, group_length
    return groups


def cache_bytes_per_token(models: Sequence[Translator | LanguageModel]) -> int:
    """Bytes of keys and values per token, over all layers. An LSTM needs no more than that."""
    total = 0
    for model in models:
        config, size = model.config, model.embedding.table.weight.element_size()
        heads, width = config.heads, config.resolved_head_width
        layers = config.decoder_layers or config.layers
        total += 2 * layers * (config.kv_heads or heads) * width * size
    return total


def step_bytes_per_beam(models: Sequence[Translator | LanguageModel]) -> int:
    """Bytes of one hypothesis in one step: logits, log-probabilities and their sorted copy."""
    return 3 * 4 * max(model.embedding.table.num_embeddings for model in models)


def cpu_costs(lengths: Sequence[int], sizes: Sequence[int]) -> list[float]:
    """The cost of each input as a share of a batch on a CPU: of its tokens or of its bytes."""
    return [
        max(length / MAX_BATCH_TOKENS, size / CPU_MEMORY)
        for length, size in zip(lengths, sizes, strict=True)
    ]


class StateSizes:
    """The sizes of decode states: any on a CPU; a few buckets where each is captured as a graph.

    With `fixed_lengths`, lengths have a few buckets in any case.
    """

    def __init__(self, *, bucketed: bool, fixed_lengths: bool = False) -> None:
        self.bucketed, self.fixed_lengths = bucketed, fixed_lengths

    def padded_length(self, tokens: int) -> int:
        """The length that inputs of at most this many tokens are padded to."""
        if self.fixed_lengths:
            return bucket_size(max(tokens, MIN_FIXED_LENGTH))
        return bucket_size(tokens) if self.bucketed else tokens

    def prompt_cells(self, tokens: int) -> int:
        """The key-value cells of prompts that are padded to this many tokens."""
        return bucket_size(tokens) if self.bucketed else tokens

    def capacity(self, generated: int) -> int:
        """The capacity for more tokens than were generated so far."""
        if self.bucketed:
            return max(MIN_CAPACITY, bucket_size(generated + 1))
        return generated + CAPACITY_STEP

    def slots(self, inputs: int) -> int:
        """The number of slots for this many inputs."""
        if not self.bucketed:
            return fixed_rows(inputs) if self.fixed_lengths else inputs
        return bucket_size(inputs) if inputs > WIDE else max(MIN_SLOTS, _next_power_of_2(inputs))

    def should_compact(self, unfinished: int, slots: int) -> bool:
        """Whether to move the unfinished inputs to a state with fewer slots."""
        return (
            self.slots(unfinished) < slots if self.bucketed else unfinished <= COMPACT_BELOW * slots
        )


def fixed_rows(inputs: int) -> int:
    """The rows of a batch-invariant batch: 2, 4, 8, 12, …, so that kernels have few shapes."""
    return MIN_INPUTS if inputs <= MIN_INPUTS else -(-inputs // ROW_STEP) * ROW_STEP


def compact_order(rows: Sequence[int]) -> list[int]:
    """Order rows so that those that fit stay in their slot, and later ones fill the gaps."""
    staying = {row for row in rows if row < len(rows)}
    moving = iter([row for row in rows if row not in staying])
    return [slot if slot in staying else next(moving) for slot in range(len(rows))]


def bucket_size(size: int) -> int:
    """Round up to 8, 16, 24, 32, 48, 64, 96, …: two sizes per octave."""
    step = 8
    while True:
        for bucket in (2 * step, 3 * step):
            if size <= bucket:
                return 8 if size <= 8 else bucket
        step *= 2


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
