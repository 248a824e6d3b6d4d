"""Penn Treebank words, as NLTK's `word_tokenize` splits them, and their detokenization."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import DataError

RULES = {
    "Well, yes: no; so!": "Well , yes : no ; so !",
    "It's 5:30, or 1,000.": "It 's 5:30 , or 1,000 .",
    "I'm sure they'll, we've, you're, he'd.": "I 'm sure they 'll , we 've , you 're , he 'd .",
    "They don't, can't and won't.": "They do n't , ca n't and wo n't .",
    "DON'T! IT'S": "DO N'T ! IT 'S",
    "America's and the workers' rights": "America 's and the workers ' rights",
    "I cannot; we're gonna, you gotta": "I can not ; we 're gon na , you got ta",
    "Gimme that, lemme, wanna": "Gim me that , lem me , wan na",
    "'Tis so, 'twas": "'T is so , 't was",
    'He said "no" (twice).': "He said `` no '' ( twice ) .",
    '"Go," he said. "Now."': "`` Go , '' he said . `` Now . ''",
    "$3.50 is 20% of #1 & more": "$ 3.50 is 20 % of # 1 & more",
    "so -- well... yes": "so -- well ... yes",
    "Mr. Hu of the U.S. left. He won.": "Mr. Hu of the U.S. left . He won .",
    "He left the U.S.": "He left the U.S .",
    "One.\nTwo.": "One . Two .",
    "[a] {b} < c": "[ a ] { b } < c",
    "well-known, half-way": "well-known , half-way",
    "“I’m here,” she said.": "“ I ’ m here , ” she said .",
    "Is it? It is!": "Is it ? It is !",
    "the '90s": "the '90s",
}


def trained(*texts: str, lowercase: bool = False) -> Tokenizer:
    return Tokenizer.train(texts, kind="word", split="treebank", lowercase=lowercase)


@pytest.mark.parametrize(("text", "tokens"), RULES.items(), ids=list(RULES.values()))
def test_the_known_rules(text: str, tokens: str) -> None:
    assert trained(text).tokenize(text) == tokens.split()


@pytest.mark.parametrize("text", [text for text in RULES if "\n" not in text])
def test_tokens_become_the_text_again(text: str) -> None:
    tokenizer = trained(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        """she said "they said 'yes'" """.strip(),
        """they said 'she said "yes"'""",
        """ "a "b" " """.strip(),
        '"He said "yes""',
    ],
)
def test_quotes_within_quotes(text: str) -> None:
    tokenizer = trained(text)
    assert tokenizer.decode(tokenizer.encode(text)).replace(" ", "") == text.replace(" ", "")


LETTERS = st.text("abcXYZ 019.,;:!?'\"()[]-–—’“”%$&…né\n", max_size=40)


@given(text=LETTERS)
def test_no_letter_is_lost_and_tokens_hold_no_space(text: str) -> None:
    if not text.strip():
        return
    tokens = trained(text).tokenize(text)
    assert not any(character.isspace() for token in tokens for character in token)
    back = "".join(tokens).replace("``", '"').replace("''", '"')
    assert back == "".join(text.split()).replace("''", '"').replace("``", '"')


@given(texts=st.lists(LETTERS, min_size=1, max_size=4))
def test_decoding_goes_from_left_to_right(texts: list[str]) -> None:
    """More tokens only add to the text, so that it can be shown while it is written."""
    if not any(text.strip() for text in texts):
        return
    tokenizer = trained(*texts)
    ids = [token for text in texts for token in tokenizer.encode(text)]
    whole = tokenizer.decode(ids)
    for stop in range(len(ids)):
        assert whole.startswith(tokenizer.decode(ids[:stop]))


def test_a_file_keeps_the_split(tmp_path: Path) -> None:
    texts = list(RULES)
    tokenizer, spaced = trained(*texts), Tokenizer.train(texts, kind="word")
    for one in (tokenizer, spaced, trained(*texts, lowercase=True)):
        one.save(tmp_path / "t.json")
        loaded = Tokenizer.load(tmp_path / "t.json")
        assert (loaded.split, loaded.lowercase) == (one.split, one.lowercase)
        assert loaded.encode_batch(texts) == one.encode_batch(texts)
        assert loaded.fingerprint() == one.fingerprint()
    assert tokenizer.fingerprint() != spaced.fingerprint()


def test_words_of_a_text_are_found() -> None:
    text = 'He said "they don\'t".'
    assert trained(text).word_indices(text) == [0, 1, 2, 2, 3, 3, 3, 3]


@pytest.mark.parametrize(("kind", "split"), [("bpe", "treebank"), ("word", "treebnak")])
def test_a_split_that_makes_no_sense(kind: str, split: str) -> None:
    with pytest.raises(DataError, match="cannot have split"):
        Tokenizer.train(["a"], kind=kind, split=split)
