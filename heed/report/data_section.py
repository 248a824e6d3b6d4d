"""What a run was trained on: its splits, the doctor's findings, and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from heed.config import Recipe
from heed.data.corpus import Corpus, open_corpus
from heed.data.doctor import examine
from heed.data.doctor.findings import Report
from heed.data.splits import open_splits, synthetic_files
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import HeedError
from heed.report.document import Block, Paragraph, Section, Table
from heed.report.run_content import RunContent
from heed.runs.load import load_tokenizer

LARGEST_EXAMINED = 100 * 2**20
"""Bytes of text that are examined again for a report; of more, `heed check` tells."""
MOST_TEXTS = 2000
"""Texts by which the tokenizer is measured."""
PLACES = 3


def build_data_section(content: RunContent) -> Section:
    """The section about data and tokenizer."""
    blocks: list[Block] = []
    texts: list[str] = []
    try:
        corpora = _open_corpora(content)
        blocks += _render_doctor(examine(corpora))
        texts = _sample_texts(corpora)
    except _UnreadableError as error:
        blocks.append(Paragraph(str(error), "note"))
    blocks += _render_tokenizer(content, texts)
    return Section("data", "Data and tokenizer", blocks)


class _UnreadableError(Exception):
    """Why the text of a run cannot be examined, as a sentence."""


def _open_corpora(content: RunContent) -> dict[str, Corpus]:
    """Every split of the run, test included, if the text is what the run was trained on."""
    recipe, advice = content.recipe, "The splits and the doctor's findings are left out."
    try:
        corpora = open_splits(recipe)
        if "train" not in corpora:
            raise _UnreadableError(f"This run names no training text. {advice}")
        if test := _test_files(recipe):
            data = recipe.data
            corpora["test"] = open_corpus(
                test, task=recipe.task, unit=data.unit, header=data.header, like=corpora["train"]
            )
        size = sum(Path(path).stat().st_size for one in corpora.values() for path in one.paths)
        if size > LARGEST_EXAMINED:
            megabytes = f"{size / 2**20:,.0f} MB"
            raise _UnreadableError(f"The text is large ({megabytes}): `heed check` examines it.")
        recorded = content.environment.get("data", {}).get("train")
        if recorded is not None and corpora["train"].fingerprint() != recorded:
            raise _UnreadableError(f"The training text has changed since training. {advice}")
    except (HeedError, OSError) as error:
        raise _UnreadableError(f"The text of this run cannot be read: {error} {advice}") from error
    return corpora


def _test_files(recipe: Recipe) -> Sequence[str]:
    if recipe.data.synthetic is not None:
        return synthetic_files(recipe)["test"]
    return recipe.data.test


def _render_doctor(report: Report) -> Iterator[Block]:
    rows = [
        [
            name,
            f"{one.records:,}",
            f"{one.kept:,}",
            " / ".join(f"{count:,}" for count in one.words),
            "–" if one.in_train is None else f"{one.in_train:,}",
            one.description,
        ]
        for name, one in report.summary.items()
    ]
    numbers = ["texts", "used", "words", "also in train"]
    columns = ["split", *numbers, "how it is read"]
    yield Table("splits", "The text of the run, by split.", columns, rows, right=numbers)
    if not report.findings:
        yield Paragraph("The data doctor found nothing to say about this text.")
        return
    findings = []
    for finding in report.findings:
        places = ", ".join(f"{Path(one.path).name}:{one.line}" for one in finding.places[:PLACES])
        message = f"{finding.message} (first at {places})" if places else finding.message
        findings.append([finding.severity, finding.split, message])
    caption = "What the data doctor (heed check) found."
    yield Table("findings", caption, ["severity", "split", "what"], findings)


# -------------------------------------------------------------------------------------- tokenizer


def _sample_texts(corpora: dict[str, Corpus]) -> list[str]:
    """Texts that the tokenizer was not learned from, where there are any: test, else dev."""
    name = next((name for name in ("test", "dev") if name in corpora), "train")
    texts: list[str] = []
    for record in corpora[name].usable_records():
        texts += record.texts
        if len(texts) >= MOST_TEXTS:
            break
    return texts


def _render_tokenizer(content: RunContent, texts: Sequence[str]) -> Iterator[Block]:
    try:
        tokenizer = load_tokenizer(content.run)
    except HeedError as error:
        yield Paragraph(f"The tokenizer cannot be read: {error}", "note")
        return
    rows = [
        ["kind", tokenizer.kind],
        ["vocabulary", f"{tokenizer.vocab_size:,} tokens"],
        *_measure(content, tokenizer, texts),
    ]
    measured = f" Rates are of {len(texts):,} texts." if texts else ""
    yield Table(
        "tokenizer", f"The tokenizer.{measured}", ["property", "value"], rows, right=["value"]
    )
    if len(rows) == 2:
        note = "Tokens per word and unknown tokens are not known: the run's text cannot be read."
        yield Paragraph(note, "note")


def _measure(
    content: RunContent, tokenizer: Tokenizer, texts: Sequence[str]
) -> Iterator[list[str]]:
    """Tokens per word and the share of unknown tokens: of the texts, else of an evaluation."""
    tokens, words, unknown = 0, sum(len(text.split()) for text in texts), 0
    for ids in tokenizer.encode_batch(list(texts)):
        tokens += len(ids)
        unknown += sum(token == tokenizer.specials.unk for token in ids)
    if not texts:
        for result in content.results.values():
            if "unknown_tokens" in result:  # the end token of each text is one of the tokens
                tokens, words = result["tokens"] - result["texts"], result["words"]
                unknown = result["unknown_tokens"]
                break
    if words and tokens:
        yield ["tokens per word", f"{tokens / words:.2f}"]
        yield ["unknown tokens", f"{unknown:,} of {tokens:,} ({unknown / tokens:.2%})"]
