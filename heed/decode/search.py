"""The one loop that writes: for every strategy, any models, translators and language models alike.

Texts are sorted by length so that a batch wastes little, and returned in the order they came. Every
few tokens the loop looks who is finished, and goes on with the others on a smaller board. On a GPU
a step is captured as a graph for each of a few sizes, and then launched at once.

Shapes: b texts, k hypotheses a text, p prompt tokens, m source tokens, v pieces.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.data.batching.bucketed import padded
from heed.data.tokenizers.special_tokens import OWN, Specials
from heed.decode import batch_plan as allowed
from heed.decode.cpu_threads import each
from heed.decode.cuda_graph import Step, captured
from heed.decode.model_step import GenerativeModel, ModelStep, Prompt, together, writer
from heed.decode.state import DecodeState, GrowAxis, Key, StateTensors, stacked
from heed.decode.strategy import Hypothesis, Strategy
from heed.errors import HeedWarning, RunError
from heed.models.inference import evaluating, position_limit
from heed.nn.kernels.prepacked_weights import packed

LOOK = 4
"""Tokens between two looks at who is finished. On a GPU a look says how it was a step before, so
that the GPU has that step to work on in the meantime."""
KEPT = 0.25
"""Share of a GPU's free memory that captured boards may hold. Where they are made anew again and
again, that takes most of the time."""
PACK = 1024
"""Tokens of all hypotheses from which on it pays to lay out weights for a CPU's kernels first."""


class Search:
    """Models that write together by one strategy. Keep it: on a GPU it is warm after its first use.

    Several models are an ensemble: the mean of their probabilities. `batch_size` is how many texts
    are written side by side; unset, more where there is a GPU. `capture` is whether steps are
    captured as CUDA graphs; unset, Transformers' are where there is a GPU. `begin` is what a
    translator reads before its first word, unset the begin mark of `specials`.
    """

    alone = False
    """Whether batches are written one after another, for they share what one batch needs."""

    def __init__(
        self,
        models: Sequence[GenerativeModel],
        how: Strategy,
        *,
        batch_size: int | None = None,
        capture: bool | None = None,
        begin: int | None = None,
        specials: Specials = OWN,
    ) -> None:
        self.models, self.how = list(models), copy(how)  # another search may end by another mark
        self.specials, self.how.end = specials, specials.eos
        self.begin = specials.bos if begin is None else begin
        self.writers = [writer(model, number) for number, model in enumerate(models)]
        self.device = self.models[0].embedding.table.weight.device
        usual = allowed.TEXTS_ON_GPU if self.device.type == "cuda" else allowed.TEXTS
        self.batch_size = batch_size or usual
        if capture is None:
            attends = all(model.config.family == "transformer" for model in models)
            capture = self.device.type == "cuda" and attends
        self.capture = capture
        self.unwritten = torch.tensor(specials.unwritten, dtype=torch.long, device=self.device)
        self.sizes = allowed.Sizes(few=self.capture)
        self._boards: dict[Key, tuple[DecodeState, Step]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.capture else (0, 0)

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        *,
        max_ratio: float = 2.0,
        max_extra: int = 10,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """The hypotheses for each source (ids without an end mark), the best first.

        An output has at most max_ratio times the source's tokens plus max_extra. `numbers` name
        the sources for sampling: those of one number get the same draws, in whatever batch.
        """
        lengths = [len(source) + 1 for source in sources]
        ends = position_limit(self.models)
        limits = allowed.limits(
            [n - 1 for n in lengths], max_ratio=max_ratio, max_extra=max_extra, most=ends
        )

        def reading(chosen: list[int]) -> Prompt:
            source, real = self._padded([[*sources[i], self.specials.eos] for i in chosen])
            prompt = torch.full_like(source[:, :1], self.begin)
            groups = allowed.groups([lengths[i] for i in chosen], source.shape[1])
            return Prompt(prompt, None, source, real, groups)

        return self._all(lengths, limits, reading, numbers)

    def go_on(
        self, prompts: Sequence[Sequence[int]], *, most: int, numbers: Sequence[int] | None = None
    ) -> list[list[Hypothesis]]:
        """What a language model writes after each prompt, `most` tokens at most.

        A prompt is ids with the begin mark; only what follows it is returned.
        """
        lengths = [len(prompt) for prompt in prompts]
        ends = position_limit(self.models)
        limits = [most if ends is None else max(1, min(most, ends - n)) for n in lengths]

        def reading(chosen: list[int]) -> Prompt:
            return Prompt(*self._padded([list(prompts[i]) for i in chosen]))

        return self._all(lengths, limits, reading, numbers)

    def try_out(self, reading: Prompt) -> None:
        """Begin these texts and write a step, for those who want to know what is launched."""
        texts = len(reading.prompt_bp)
        with evaluating(*self.models):
            first, (logits, looked) = self._begin(reading, [1] * texts, list(range(texts)))
            board = first.blank(self.sizes.seats(texts), self.sizes.room(0))
            board.take(first, torch.arange(texts, device=self.device))
            self._choose_first(board, logits, looked)
            self._step(board)

    def _padded(self, texts: list[list[int]]) -> tuple[Tensor, Tensor]:
        length = self.sizes.length(max(map(len, texts)))
        ids, real = padded([np.array(ids) for ids in texts], length, self.specials.pad)
        return ids.to(self.device), real.to(self.device)

    def _all(
        self,
        lengths: Sequence[int],
        limits: Sequence[int],
        reading: Callable[[list[int]], Prompt],
        numbers: Sequence[int] | None,
    ) -> list[list[Hypothesis]]:
        numbers = range(len(lengths)) if numbers is None else numbers
        out: list[list[Hypothesis]] = [[] for _ in lengths]
        batches = list(self._batches(lengths, limits))

        def work(chosen: list[int]) -> list[list[Hypothesis]]:
            own = [limits[i] for i in chosen], [numbers[i] for i in chosen]
            return self._batch(reading(chosen), *own)

        much = self.how.lanes * sum(lengths) >= PACK
        with evaluating(*self.models), packed(self.models if much else []):
            # Captured boards are kept from batch to batch: no two may write on them at once.
            crew = self.device.type == "cpu" and not (self.capture or self.alone)
            for chosen, found in zip(batches, each(work, batches, crew=crew), strict=True):
                for i, written in zip(chosen, found, strict=True):
                    out[i] = written
        return out

    def _batches(self, lengths: Sequence[int], limits: Sequence[int]) -> Iterator[list[int]]:
        """Which texts are written side by side: no more than there is memory for."""
        if self.device.type != "cuda":
            return allowed.batches(lengths, self.batch_size)
        kept = [n + self.how.lanes * limit for n, limit in zip(lengths, limits, strict=True)]
        most = int(allowed.BOARD * self._memory()) // allowed.token_bytes(self.models)
        return allowed.batches(lengths, self.batch_size, costs=kept, most=most)

    def _batch(
        self, reading: Prompt, limits: list[int], numbers: list[int]
    ) -> list[list[Hypothesis]]:
        """Write until all texts are finished."""
        out: list[list[Hypothesis]] = [[] for _ in limits]
        places, longest, written = list(range(len(limits))), max(limits), 1
        first, (logits, looked) = self._begin(reading, limits, numbers)
        board, step = self._move(first, places, self.sizes.room(0))
        self._choose_first(board, logits, looked)
        self._told(board)
        finished = board.finished()
        while written < longest:
            if written % LOOK == 0 or written == board.room:
                done = finished()[: len(places)]
                going = allowed.seated([row for row, over in enumerate(done) if not over])
                if not going:
                    break
                if written == board.room or self.sizes.worth(len(going), board.size):
                    self._read(board, places, [row for row in range(len(done)) if done[row]], out)
                    room = self.sizes.room(written) if written == board.room else board.room
                    board, step = self._move(board, going, room)
                    places = [places[row] for row in going]
            if (written + 1) % LOOK == 0 or written + 1 == board.room:
                finished = board.finished()
            step()
            self._told(board)
            written += 1
        self._read(board, places, list(range(len(places))), out)
        return out

    def _told(self, board: DecodeState) -> None:
        """A token was written: for one who listens."""

    def _begin(
        self, reading: Prompt, limits: list[int], numbers: list[int]
    ) -> tuple[DecodeState, tuple[Tensor, Tensor | None]]:
        """Read what there is to read; a board without room, and what the models say comes first."""
        lanes, prompt = self.how.lanes, self.sizes.length(reading.prompt_bp.shape[1])
        kept = self.how.begin(limits, numbers, self.device)
        kept |= _facts(reading, lanes, prompt)
        if reading.source_bm is not None and self.how.looks:
            coverage = torch.zeros(len(limits), lanes, reading.source_bm.shape[1])
            kept["coverage"] = coverage.to(self.device), None
        said = []
        for one in self.writers:
            logits, looked, own = self._begun(one, reading, prompt)
            kept |= own
            said.append((logits, looked))
        tensors = {name: tensor for name, (tensor, _) in kept.items()}
        growth = {name: grown for name, (_, grown) in kept.items() if grown is not None}
        return DecodeState(tensors, growth, size=len(limits), room=0), self._joined(said)

    def _begun(
        self, one: ModelStep, reading: Prompt, prompt: int
    ) -> tuple[Tensor, Tensor | None, StateTensors]:
        """What one model says comes first, where it found that, and what it keeps on the board."""
        said, looks, kept = list[Tensor](), list[Tensor](), list[StateTensors]()
        for part in reading.parts():
            logits, looked, cache = one.begin(part, looking=self.how.looks)
            said.append(logits)
            looks += [] if looked is None else [looked]
            kept.append(one.keep(cache, self.how.lanes, prompt))
        whole: StateTensors = {
            name: (stacked([own[name][0] for own in kept]), growth)
            for name, (_, growth) in kept[0].items()
        }
        return torch.cat(said), stacked(looks) if looks else None, whole

    def _seated(self, x_b: Tensor, board: DecodeState) -> Tensor:
        """The same for every hypothesis of a text, and zeros for seats that no text has."""
        seated = F.pad(x_b, (0, 0, 0, board.size - x_b.shape[0]))
        return seated[:, None].expand(-1, self.how.lanes, -1)

    def _move(self, board: DecodeState, rows: list[int], room: int) -> tuple[DecodeState, Step]:
        """These texts on a board of their own, and the step over it."""
        if not self.capture and room == board.room:
            kept = board.kept(rows)
            return kept, partial(self._step, kept)
        size = self.sizes.seats(len(rows))
        key = board.key(size, room)
        if key in self._boards:
            moved, step = self._boards[key]
        elif self.capture:
            self._make_room()
            moved = board.blank(size, room)
            self._boards[key] = moved, (step := self._captured(moved))
        else:
            moved = board.blank(size, room)
            step = partial(self._step, moved)
        moved.take(board, torch.tensor(rows, device=self.device))
        return moved, step

    def _captured(self, board: DecodeState) -> Step:
        step = partial(self._step, board)
        try:
            return captured(step, self._pool)
        except RuntimeError as problem:
            self.capture = False
            warnings.warn(f"Decoding without CUDA graphs: {problem}", HeedWarning, stacklevel=2)
            return step

    def _make_room(self) -> None:
        """Forget the boards made first where they hold much memory."""
        most = KEPT * self._memory()
        while self._held() > most:
            del self._boards[next(iter(self._boards))]

    def _held(self) -> int:
        return sum(board.bytes() for board, _ in self._boards.values())

    def _memory(self) -> int:
        """What of the GPU's memory nobody has, or boards have that could be forgotten."""
        free, _ = torch.cuda.mem_get_info(self.device)
        idle = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + idle + self._held()

    def _read(
        self, board: DecodeState, places: list[int], rows: list[int], out: list[list[Hypothesis]]
    ) -> None:
        """Put the results of these rows where their texts belong."""
        read = self.how.read(board, torch.tensor(rows, dtype=torch.long, device=self.device))
        for row, written in zip(rows, read, strict=True):
            if not written or any(math.isnan(one.score) for one in written):
                raise _no_number(self.models)
            out[places[row]] = written

    def _step(self, board: DecodeState) -> None:
        """Read the last token of every hypothesis and choose the next: no waiting, fixed shapes."""
        board.see_self()
        said = [one.read(board, looking=self.how.looks) for one in self.writers]
        board.cells.add_(self.how.lanes)
        self._choose(board, *self._joined(said))

    def _joined(self, said: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
        """What several models say, as one, without the pieces that no text has."""
        logits = together([logits for logits, _ in said])
        looks = [looked for _, looked in said if looked is not None]
        if self.specials.unwritten:
            logits.index_fill_(-1, self.unwritten, -torch.inf)
        return logits, torch.stack(looks).mean(0) if looks else None

    def _choose_first(
        self, board: DecodeState, logits_bv: Tensor, looked_bm: Tensor | None
    ) -> None:
        """The hypotheses of a text begin alike."""
        looked = None if looked_bm is None else self._seated(looked_bm, board)
        self._choose(board, self._seated(logits_bv, board), looked)

    def _choose(self, board: DecodeState, logits_bkv: Tensor, looked_bkm: Tensor | None) -> None:
        parents = self.how.choose(logits_bkv, looked_bkm, board)
        board.at.add_(1)
        if parents is not None:
            board.follow(parents)
            for one in self.writers:
                one.follow(board, parents)


def _no_number(models: Sequence[nn.Module]) -> RunError:
    """What to say where no text can be told from another, with the first weight to blame."""
    weights = (named for model in models for named in model.named_parameters())
    broken = next((name for name, weight in weights if not weight.isfinite().all()), None)
    return RunError(
        "what the model says of a text is not a number (NaN), so there is nothing to write.",
        where=broken and f"weight {broken}",
        todo="Load it in float32; if that is the same, train it again with a lower train.lr.",
    )


def _facts(reading: Prompt, lanes: int, prompt: int) -> StateTensors:
    """What all models share: who has which cell in its past, and what the source is."""
    ids, real = reading.prompt_bp, reading.prompt_real
    seen_bp = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    seen_bp = F.pad(seen_bp, (0, prompt - ids.shape[1]))
    whole = torch.full_like(ids[:1, :1], ids.shape[1])
    facts: StateTensors = {
        "seen": (seen_bp[:, None].expand(-1, lanes, -1), GrowAxis(axis=2, cells=lanes)),
        "offset": (whole if real is None else real.sum(dim=1, keepdim=True), None),
    }
    if reading.source_real is not None:
        facts["source_real"] = reading.source_real, None
        facts["source_ends"] = reading.source_real.sum(dim=1), None
        places = torch.arange(reading.source_real.shape[1], device=ids.device)
        facts["source_places"] = places[None], None
    return facts
