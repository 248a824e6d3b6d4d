"""Penn Treebank word tokenization: punctuation separated, contractions split, "do n't".

The rules are those of NLTK's `word_tokenize`, written as split patterns:

| text                   | tokens                          |
|------------------------|---------------------------------|
| Well, it's 5:30, $3.50 | Well  ,  it  's  5:30  ,  $  3.50 |
| they don't; I cannot   | they  do  n't  ;  I  can  not   |
| He said "no" (twice).  | He  said  ``  no  ''  (  twice  )  . |
| Mr. Hu left the U.S.   | Mr.  Hu  left  the  U.S  .      |

A period stays with an abbreviation and is split off any other word that white space follows. At the
end of a line it is always split off. Where NLTK uses a trained model for the ends of sentences, a
list of abbreviations serves here. Straight double quotes become `` and '', since a token alone does
not show which one it is; by them decoding knows on which side the space goes.
"""

from __future__ import annotations

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

ABBREVIATIONS = (
    "Mr Mrs Ms Dr St Gen Sen Rep Gov Rev Col Capt Lt Sgt Jr Sr vs etc No Inc Co Corp Prof Hon"
)
# A lookbehind may have alternatives of different lengths, but only at its top level.
ABBREVIATED = "|".join([*(rf"\b{word}" for word in ABBREVIATIONS.split()), r"\b\p{L}", r"\.\p{L}"])
SEPARATE_TOKENS = (
    r"``|''",
    r"\.{2,}|…",
    r"--",
    r"[;@#$%&?!*<>(){}\[\]«»“”„‘’]",
    r"[:,](?!\d)",
    # $ matches at the end of a line, as in Ruby.
    r"""(?<!\.)\.(?=[\])}>"'»”’]*\s*$)""",
    rf"""(?<!\.|{ABBREVIATED})\.(?=[\])}}>"'»”’]*\s)""",
    r"(?<=\w)(?i:n't|'ll|'re|'ve|'[smd])(?!\w)",
    r"(?<=[^\s'])'(?!\w)",
    r"'(?=[^\W\d_mtsdnMTSDN]\b)",
    r"(?i:(?<=\bcan)not|(?<=\bgon|\bwan)na|(?<=\bgot)ta|(?<=\bgim|\blem)me|(?<=\bd)'ye)\b",
    r"(?i:\b'|(?<!\w)')(?i:t)(?=(?i:is|was)\b)",
)
"""Patterns of what becomes a token by itself, wherever it is found."""
QUOTES = (
    (r'(?<![^\s\[({<])"', "``"),
    # Three single quotes in a row would be ambiguous.
    ("(?<=')\"", " ''"),
    ("\"(?=')", "'' "),
    ('"', "''"),
)
"""Straight double quotes and their replacements: opening or closing."""
JOINS = (
    (r"(?: |^)''(?!\S)|(?<!\S)`` ?", '"'),
    (r" (?=(?:[,;:?!%)\]}»”…’]|\.+)(?!\w))", ""),
    (r"(?<=[(\[{«“„‘$#]) ", ""),
    (r"(?<=\w’) (?=(?i:s|t|m|d|ll|re|ve)(?!\w))", ""),
    (r"(?i:(?<=\bcan) (?=not\b)|(?<=\bgon|\bwan) (?=na\b)|(?<=\bgot) (?=ta\b))", ""),
    (r"(?i:(?<=\bgim|\blem) (?=me\b)|(?<=\bd) (?='ye\b)|(?<='t) (?=(?:is|was)\b))", ""),
    (r" (?=(?i:n't|'ll|'re|'ve|'[smd]?)(?!\w))", ""),
)
"""How tokens with a space before each become text again."""


def quote_normalizers() -> list[normalizers.Normalizer]:
    """Normalizers that replace straight double quotes by opening or closing ones."""
    return [normalizers.Replace(Regex(pattern), text) for pattern, text in QUOTES]


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Pre-tokenizer that separates punctuation and contractions; white space stays for the next."""
    return pre_tokenizers.Split(Regex("|".join(SEPARATE_TOKENS)), "isolated")


def decoders_of_text() -> list[decoders.Decoder]:
    """Decoders that restore the spacing of a whole text whose tokens have a space before each."""
    return [decoders.Replace(Regex(pattern), text) for pattern, text in JOINS]
