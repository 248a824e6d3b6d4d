"""Text in, translations out: what stands between a line and the ids that models read and write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from heed.config import DecodeConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode import alignment
from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.sampling import Sample
from heed.decode.search import Search
from heed.decode.strategy import Hypothesis, Strategy
from heed.errors import ConfigError, DataError
from heed.models import Translator
from heed.pipelines.split_long import parts

T = TypeVar("T")
PARTS = 1 << 20
"""More parts than a text has: what sets the draws of one text's parts apart from the next one's."""


@dataclass(frozen=True)
class Choice:
    """One translation of a text."""

    text: str
    score: float
    cut: bool = False
    """Whether it was ended by the limit on its length."""
    links: alignment.Links = field(default_factory=list)
    """(source word, target word), where asked for."""
    weights: alignment.Floats | None = None
    """[target words, source words], where asked for and the text was read as one."""


@dataclass(frozen=True)
class Translation:
    """A text and its translations, the best first; a blank text has none."""

    source: str
    choices: list[Choice]
    parts: int = 1
    """In how many parts it was read; more than one where it was too long."""

    @property
    def text(self) -> str:
        """The best translation."""
        return self.choices[0].text if self.choices else ""

    @property
    def cut(self) -> bool:
        """Whether the best translation was ended by the limit on its length."""
        return bool(self.choices) and self.choices[0].cut

    def line(self, *, scores: bool = False, alignments: bool = False) -> str:
        """All translations in one line, with tabs between; nothing for a blank text."""
        columns = []
        for choice in self.choices:
            columns.append(choice.text)
            columns += [f"{choice.score:.4f}"] if scores else []
            columns += [alignment.pharaoh(choice.links)] if alignments else []
        return "\t".join(columns)

    def facts(self, *, nbest: bool = False, alignments: bool = False) -> dict[str, Any]:
        """The same for a program: the same keys for every text, a blank one, too."""
        best = self.choices[0] if self.choices else None
        found: dict[str, Any] = {"source": self.source, "translation": self.text}
        score = None if best is None else best.score
        found |= {"score": score, "cut": self.cut, "parts": self.parts}
        if nbest:
            found["nbest"] = [
                {"translation": c.text, "score": c.score, "cut": c.cut} for c in self.choices
            ]
        if alignments:
            weights = None if best is None else best.weights
            found["alignment"] = [list(link) for link in best.links] if best else []
            found["weights"] = None if weights is None else weights.round(4).tolist()
        return found


def listed(texts: Iterable[T], *, pairs: bool = False) -> list[T]:
    """Texts as a list; with `pairs`, each may be two. What is none of that, is refused."""
    found = list(several(texts))
    for number, text in enumerate(found, 1):
        parts = text if pairs and isinstance(text, tuple | list) else [text]
        if wrong := [part for part in parts if not isinstance(part, str)]:
            what = f"text {number} is {wrong[0]!r}, which is no string."
            raise DataError(what, todo='A text that is not there is "".')
    return found


def several(texts: Iterable[T]) -> Iterable[T]:
    """The same texts. One string alone is refused: it would be read letter by letter."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        kind = "one string" if isinstance(texts, str) else repr(texts)
        raise DataError(f"there is {kind} where texts belong.", todo='Give a list: ["…"].')
    return texts


def decoding(recipe: DecodeConfig, settings: Mapping[str, Any]) -> DecodeConfig:
    """Settings over those of a recipe. A beam asks for no draws, and draws for no beam."""
    implied: dict[str, Any] = {}
    if "beam" in settings:
        implied = {"sample": False}
    elif settings.get("sample"):
        implied = {"beam": 1}
    return DecodeConfig(**(recipe.model_dump() | implied | dict(settings)))


def strategy(settings: DecodeConfig, nbest: int, drawing: type[Sample] = Sample) -> Strategy:
    """The strategy that settings name, for so many translations of each text.

    `drawing` is how to sample where they ask for that.
    """
    if nbest < 1:
        raise ConfigError([f"nbest cannot be {nbest}: ask for 1 or more."])
    if settings.sample:
        return drawing(
            nbest,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            seed=settings.seed,
            length_penalty=settings.length_penalty,
        )
    if nbest > settings.beam:
        raise ConfigError(
            [f"nbest {nbest} asks for more than a beam of {settings.beam} finds: widen the beam."]
        )
    if settings.beam == 1 and not settings.coverage_penalty:
        return Greedy(length_penalty=settings.length_penalty)
    return Beam(
        settings.beam,
        nbest=nbest,
        length_penalty=settings.length_penalty,
        coverage_penalty=settings.coverage_penalty,
        early_stop=settings.early_stop,
    )


class Searching(Protocol):
    """What finds hypotheses for ids, as `Search.translate` says."""

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        *,
        max_ratio: float = 2.0,
        max_extra: int = 10,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]: ...


class TranslationPipeline:
    """Writes translations of texts, whatever the texts: blank, too long, in any script."""

    def __init__(
        self,
        models: Sequence[Translator],
        tokenizer: Tokenizer,
        settings: DecodeConfig,
        *,
        longest: int,
        nbest: int = 1,
        alignments: bool = False,
        search: Searching | None = None,
        reverse: bool = False,
    ) -> None:
        """`longest` is how many tokens of a source the models read.

        With `reverse` they write the language that they were given to read (`data.both`).
        `search` is who writes, where that is another than heed's own search with these models.
        """
        self.models, self.tokenizer, self.settings = list(models), tokenizer, settings
        self.longest, self.alignments = max(1, longest), alignments
        how = strategy(settings, nbest)
        marks = tokenizer.specials
        self.begin = marks.eos if reverse else marks.bos
        told: dict[str, Any] = {"begin": self.begin, "specials": marks}
        self.search: Searching = search or Search(
            self.models, how, batch_size=settings.batch_size, **told
        )

    def translate(self, texts: Sequence[str], *, first: int = 0) -> list[Translation]:
        """One translation a text, in order. `first` is the number of the first of them."""
        cuts = self._cuts(texts)
        pieces = [(i, span) for i, spans in enumerate(cuts) for span in spans]
        sources = [texts[i][start:stop] for i, (start, stop) in pieces]
        ids = self.tokenizer.encode_batch(sources)
        inside = [n for spans in cuts for n in range(len(spans))]
        written = self.search.translate(
            [one[: self.longest] for one in ids],
            max_ratio=self.settings.max_ratio,
            max_extra=self.settings.max_extra,
            numbers=[(first + i) * PARTS + n for (i, _), n in zip(pieces, inside, strict=True)],
        )
        choices = iter(self._choices(sources, ids, written))
        found = []
        for text, spans in zip(texts, cuts, strict=True):
            own = [next(choices) for _ in spans]
            joined = own[0] if len(own) == 1 else _joined(text, spans, own)
            if len(own) > 1 and not self.settings.sample:
                joined.sort(key=lambda choice: (choice.cut, -choice.score))
            found.append(Translation(text, joined, len(spans)))
        return found

    def _cuts(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """The parts each text is read in: none of a blank one, several of one that is too long."""
        cuts = [[(0, len(text))] if text.strip() else [] for text in texts]
        long = [i for i, fit in enumerate(self._fits(texts)) if not fit]
        for i in long:
            spans = parts(texts[i], self._fits)
            cuts[i] = [(start, stop) for start, stop in spans if texts[i][start:stop].strip()]
        return cuts

    def _fits(self, texts: Sequence[str]) -> list[bool]:
        return [len(ids) <= self.longest for ids in self.tokenizer.encode_batch(texts)]

    def _choices(
        self, sources: Sequence[str], ids: Sequence[list[int]], written: Sequence[list[Hypothesis]]
    ) -> list[list[Choice]]:
        """From ids to text, with alignments where something asks for them."""
        flat = [(i, one) for i, several in enumerate(written) for one in several]
        looked = self._look(ids, flat)
        out: list[list[Choice]] = [[] for _ in sources]
        for number, (i, one) in enumerate(flat):
            out[i].append(self._choice(sources[i], one, looked.get(number)))
        return out

    def _look(
        self, ids: Sequence[list[int]], flat: Sequence[tuple[int, Hypothesis]]
    ) -> dict[int, alignment.Floats]:
        """Soft alignments of those that need one."""
        copying, marks = self.settings.copy_unknown, self.tokenizer.specials
        asked = [
            number
            for number, (_, one) in enumerate(flat)
            if self.alignments or (copying and marks.unk in one.ids)
        ]
        pairs = [(ids[flat[n][0]][: self.longest], flat[n][1].ids) for n in asked]
        found = alignment.soft_alignments(self.models, pairs, begin=self.begin, specials=marks)
        return dict(zip(asked, found, strict=True))

    def _choice(self, source: str, one: Hypothesis, weights: alignment.Floats | None) -> Choice:
        if weights is None:
            text = " ".join(self.tokenizer.decode(one.ids).split())
            return Choice(text, one.score, one.cut)
        copied = {}
        if self.settings.copy_unknown:
            copied = alignment.copies(self.tokenizer, one.ids, weights, source)
        text, words = alignment.spelled(self.tokenizer, one.ids, copied)
        if not self.alignments:
            return Choice(text, one.score, one.cut)
        read = self.tokenizer.words(source)[: weights.shape[1]]
        shares = alignment.by_word(weights, (words, len(text.split())), (read, len(source.split())))
        return Choice(text, one.score, one.cut, alignment.links(shares), shares)


def _joined(
    text: str, spans: Sequence[tuple[int, int]], choices: Sequence[list[Choice]]
) -> list[Choice]:
    """The translations of a text that was read in parts: the best of each part, and so on.

    Scores are averaged by length in words; alignments count words of the whole text.
    """
    out, first_words = [], list(_first_words(text, [start for start, _ in spans]))
    for several in zip(*choices, strict=False):
        links, written = [], 0
        for read, one in zip(first_words, several, strict=True):
            links += [(read + source, written + target) for source, target in one.links]
            written += len(one.text.split())
        sizes = [1 + len(one.text.split()) for one in several]
        score = sum(n * one.score for n, one in zip(sizes, several, strict=True)) / sum(sizes)
        whole = " ".join(one.text for one in several if one.text)
        out.append(Choice(whole, score, any(one.cut for one in several), links))
    return out


def _first_words(text: str, starts: Sequence[int]) -> Iterator[int]:
    """The number of the word that each part begins with, which may be inside of it."""
    number = before = 0
    for start in starts:
        inside = start > 0 and not (text[start - 1].isspace() or text[start].isspace())
        number += len(text[before:start].split()) - inside
        before = start
        yield number
