"""The synthetic corpus: generated English-French text with alignments, tags and speakers.

`lexicon` and `french` hold the words and their forms, `phrases` builds bilingual phrases, `clauses`
and `documents` combine them into sentences and stories in the style of three `speakers`.
`random_choices` makes every draw and holds out combinations; `generator` writes the corpus.
"""

from hashlib import blake2b
from pathlib import Path

from heed.data.synthetic.generator import (
    SPEAKERS,
    SPLITS,
    Sentence,
    generate_sentences,
    write_corpus,
)

__all__ = ["SPEAKERS", "SPLITS", "Sentence", "generate_sentences", "grammar_hash", "write_corpus"]


def grammar_hash() -> str:
    """Hash of the grammar's source, so that cached text of an older version is not used."""
    digest = blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
