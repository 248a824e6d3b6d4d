"""The translation pipeline: texts to ids, through the search, and back to text.

Shapes: n target tokens, m source tokens; N target words, M source words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from heed.config import DecodeConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode import alignment
from heed.decode.search import Search
from heed.decode.settings import build_strategy
from heed.decode.strategy import Hypothesis, IsCancelled
from heed.files import to_json
from heed.models import Translator
from heed.pipelines.line_io import LineResult

if TYPE_CHECKING:
    from heed.nn.kernels.quantized_linear import Int8Weights

MAX_PARTS = 1 << 20
"""More parts than any text has: part p of text i has number i·MAX_PARTS + p for sampling."""
Span = tuple[int, int]


@dataclass(frozen=True)
class Choice:
    """One translation of a text."""

    text: str
    score: float
    cut: bool = False
    """Whether the length limit ended it."""
    links: alignment.Links = field(default_factory=list)
    """(source word, target word), if alignments were requested."""
    weights: alignment.Floats | None = None
    """[N, M], if alignments were requested and the text was not split."""


@dataclass(frozen=True)
class Translation:
    """A text and its translations, the best first; a blank text has none."""

    source: str
    choices: list[Choice]
    parts: int = 1
    """In how many parts it was translated; more than one if it was too long."""

    @property
    def text(self) -> str:
        """The best translation."""
        return self.choices[0].text if self.choices else ""

    @property
    def cut(self) -> bool:
        """Whether the length limit ended the best translation."""
        return bool(self.choices) and self.choices[0].cut

    @property
    def split_warning(self) -> str | None:
        """Warning for a text that was split because it is longer than the model's limit."""
        if self.parts < 2:
            return None
        return f"longer than this model reads at once, so translated in {self.parts} parts."

    def line(self, *, scores: bool = False, alignments: bool = False) -> str:
        """All translations in one line, separated by tabs; empty for a blank text."""
        columns = []
        for choice in self.choices:
            columns.append(choice.text)
            columns += [f"{choice.score:.4f}"] if scores else []
            columns += [alignment.pharaoh_format(choice.links)] if alignments else []
        return "\t".join(columns)

    def to_dict(self, *, nbest: bool = False, alignments: bool = False) -> dict[str, Any]:
        """The fields for JSON, with the same keys for every text, blank ones included."""
        best = self.choices[0] if self.choices else None
        fields: dict[str, Any] = {"source": self.source, "translation": self.text}
        score = None if best is None else best.score
        fields |= {"score": score, "cut": self.cut, "parts": self.parts}
        if nbest:
            fields["nbest"] = [
                {"translation": c.text, "score": c.score, "cut": c.cut} for c in self.choices
            ]
        if alignments:
            weights = None if best is None else best.weights
            fields["alignment"] = [list(link) for link in best.links] if best else []
            fields["weights"] = None if weights is None else weights.round(4).tolist()
        return fields


class TranslationSearch(Protocol):
    """A search over ids, as `Search.translate` has it."""

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        *,
        max_ratio: float = 2.0,
        max_extra: int = 10,
        numbers: Sequence[int] | None = None,
        is_cancelled: IsCancelled | None = None,
    ) -> list[list[Hypothesis]]: ...


class TranslationPipeline:
    """Translates texts of any kind: blank, too long, in any script."""

    def __init__(
        self,
        models: Sequence[Translator],
        tokenizer: Tokenizer,
        settings: DecodeConfig,
        *,
        max_source: int,
        nbest: int = 1,
        alignments: bool = False,
        search: TranslationSearch | None = None,
        reverse: bool = False,
        batch_invariant: bool = False,
        int8: Int8Weights | None = None,
    ) -> None:
        """`max_source` is how many tokens of a source the models read.

        With `reverse` they translate from target to source language (`data.bidirectional`).
        `search` replaces heed's own search with these models. With `batch_invariant` heed's own
        search gives a text the same translation, whatever is translated beside it. With `int8` it
        uses those weights; alignments still come from the models' own.
        """
        self.models, self.tokenizer, self.settings = list(models), tokenizer, settings
        self.max_source, self.alignments = max(1, max_source), alignments
        strategy = build_strategy(settings, nbest)
        specials = tokenizer.specials
        self.begin = specials.eos if reverse else specials.bos
        self.search: TranslationSearch = search or Search(
            self.models,
            strategy,
            batch_size=settings.batch_size,
            begin=self.begin,
            specials=specials,
            batch_invariant=batch_invariant,
            int8=int8,
        )

    def translate(
        self,
        texts: Sequence[str],
        *,
        first: int = 0,
        numbers: Sequence[int] | None = None,
        is_cancelled: IsCancelled | None = None,
    ) -> list[Translation]:
        """One translation per text, in order; `first` is the number of the first text.

        Numbers seed the sampling of each text; `numbers` are those of all texts. `is_cancelled` is
        called while they are decoded; once it is true, a `DecodingCancelledError` ends the search.
        """
        numbers = range(first, first + len(texts)) if numbers is None else numbers
        ids_of = dict(zip(texts, self.tokenizer.encode_batch(texts), strict=True))
        spans_of = self._split(texts, ids_of)
        parts = [(i, span) for i, spans in enumerate(spans_of) for span in spans]
        sources = [texts[i][start:stop] for i, (start, stop) in parts]
        others = [source for source in sources if source not in ids_of]  # parts of long texts
        ids_of |= zip(others, self.tokenizer.encode_batch(others), strict=True)
        ids = [ids_of[source] for source in sources]
        part_numbers = [n for spans in spans_of for n in range(len(spans))]
        hypotheses = self.search.translate(
            [source_ids[: self.max_source] for source_ids in ids],
            max_ratio=self.settings.max_ratio,
            max_extra=self.settings.max_extra,
            numbers=[
                numbers[i] * MAX_PARTS + n for (i, _), n in zip(parts, part_numbers, strict=True)
            ],
            is_cancelled=is_cancelled,
        )
        choices_of_part = iter(self.choices(sources, ids, hypotheses))
        translations = []
        for text, spans in zip(texts, spans_of, strict=True):
            by_part = [next(choices_of_part) for _ in spans]
            choices = by_part[0] if len(by_part) == 1 else _join_parts(text, spans, by_part)
            if len(by_part) > 1 and not self.settings.sample:
                choices.sort(key=lambda choice: (choice.cut, -choice.score))
            translations.append(Translation(text, choices, len(spans)))
        return translations

    def _split(self, texts: Sequence[str], ids_of: Mapping[str, list[int]]) -> list[list[Span]]:
        """The parts of each text: none if it is blank, several if it is too long."""
        spans_of = [[(0, len(text))] if text.strip() else [] for text in texts]
        too_long = [i for i, text in enumerate(texts) if len(ids_of[text]) > self.max_source]
        if too_long:  # few texts are: only then is there more to import
            from heed.pipelines.split_long import split_long
        for i in too_long:
            spans = split_long(texts[i], self._fits)
            spans_of[i] = [(start, stop) for start, stop in spans if texts[i][start:stop].strip()]
        return spans_of

    def _fits(self, texts: Sequence[str]) -> list[bool]:
        return [len(ids) <= self.max_source for ids in self.tokenizer.encode_batch(texts)]

    def choices(
        self,
        sources: Sequence[str],
        ids: Sequence[list[int]],
        hypotheses: Sequence[list[Hypothesis]],
    ) -> list[list[Choice]]:
        """The choices of each source: text, and alignments where they are needed."""
        flat = [(i, hypothesis) for i, several in enumerate(hypotheses) for hypothesis in several]
        weights = self._soft_alignments(ids, flat)
        plain = [n for n in range(len(flat)) if n not in weights]
        decoded = self.tokenizer.decode_batch([flat[n][1].ids for n in plain])
        plain_texts = dict(zip(plain, decoded, strict=True))
        choices: list[list[Choice]] = [[] for _ in sources]
        for n, (i, hypothesis) in enumerate(flat):
            if n in weights:
                choices[i].append(self._aligned_choice(sources[i], hypothesis, weights[n]))
            else:
                text = " ".join(plain_texts[n].split())
                choices[i].append(Choice(text, hypothesis.score, hypothesis.cut))
        return choices

    def _soft_alignments(
        self, ids: Sequence[list[int]], hypotheses: Sequence[tuple[int, Hypothesis]]
    ) -> dict[int, alignment.Floats]:
        """Soft alignments [n, m] of the hypotheses that need one, by their index."""
        copying, specials = self.settings.copy_unknown, self.tokenizer.specials
        needed = [
            n
            for n, (_, hypothesis) in enumerate(hypotheses)
            if self.alignments or (copying and specials.unk in hypothesis.ids)
        ]
        pairs = [(ids[hypotheses[n][0]][: self.max_source], hypotheses[n][1].ids) for n in needed]
        weights = alignment.soft_alignments(self.models, pairs, begin=self.begin, specials=specials)
        return dict(zip(needed, weights, strict=True))

    def _aligned_choice(
        self, source: str, hypothesis: Hypothesis, weights_nm: alignment.Floats
    ) -> Choice:
        ids, score, cut = hypothesis.ids, hypothesis.score, hypothesis.cut
        copies = {}
        if self.settings.copy_unknown:
            copies = alignment.unknown_copies(self.tokenizer, ids, weights_nm, source)
        text, target_words = alignment.decode_words(self.tokenizer, ids, copies)
        if not self.alignments:
            return Choice(text, score, cut)
        source_words = self.tokenizer.word_indices(source)[: weights_nm.shape[1]]
        weights = alignment.by_word(
            weights_nm, (target_words, len(text.split())), (source_words, len(source.split()))
        )
        return Choice(text, score, cut, alignment.hard_links(weights), weights)


def _join_parts(
    text: str, spans: Sequence[Span], choices_of: Sequence[list[Choice]]
) -> list[Choice]:
    """The translations of a text that was split: the best of every part, the second best, ….

    Scores are averaged by length in words; alignments count the words of the whole text.
    """
    choices, first_words = [], list(_first_words(text, [start for start, _ in spans]))
    for parts in zip(*choices_of, strict=False):
        links, target_words = [], 0
        for source_words, part in zip(first_words, parts, strict=True):
            links += [(source_words + source, target_words + t) for source, t in part.links]
            target_words += len(part.text.split())
        sizes = [1 + len(part.text.split()) for part in parts]
        score = sum(n * part.score for n, part in zip(sizes, parts, strict=True)) / sum(sizes)
        whole = " ".join(part.text for part in parts if part.text)
        choices.append(Choice(whole, score, any(part.cut for part in parts), links))
    return choices


def _first_words(text: str, starts: Sequence[int]) -> Iterator[int]:
    """The index of the word that each part begins with; a part may begin inside a word."""
    index = before = 0
    for start in starts:
        inside = start > 0 and not (text[start - 1].isspace() or text[start].isspace())
        index += len(text[before:start].split()) - inside
        before = start
        yield index


class Translates(Protocol):
    """What translates texts, as `TranslationPipeline.translate` does."""

    def translate(self, texts: Sequence[str], *, first: int = 0) -> list[Translation]: ...


@dataclass
class TranslationLines:
    """The line task of `heed translate`: translates lines, and counts those that were cut."""

    pipeline: Translates
    scores: bool = False
    alignments: bool = False
    json: bool = False
    nbest: bool = False
    """Whether several translations were requested; JSON then has a list of them."""
    translated: int = 0
    cut: int = 0

    def run(self, lines: Sequence[str], *, first: int) -> Iterator[LineResult]:
        """One translation per line; a text that was split gives a warning."""
        for number, translation in enumerate(
            self.pipeline.translate(lines, first=first), first + 1
        ):
            self.translated += bool(translation.choices)
            self.cut += translation.cut
            warning = translation.split_warning
            yield LineResult([self._format(translation)], warning and f"line {number}: {warning}")

    def summary(self) -> str | None:
        """How many translations the length limit cut."""
        if not self.cut:
            return None
        share = f"{self.cut:,} of {self.translated:,} translations"
        percent = f"{self.cut / self.translated:.1%}"
        return f"{share} ({percent}) were cut at the length limit (max_ratio, max_extra)."

    def _format(self, translation: Translation) -> str:
        if self.json:
            return to_json(translation.to_dict(nbest=self.nbest, alignments=self.alignments))
        return translation.line(scores=self.scores, alignments=self.alignments)
