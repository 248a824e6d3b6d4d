"""Words as the Penn Treebank cuts them: punctuation apart, contractions in two, "do n't".

The rules are those that NLTK's `word_tokenize` is known by, written as places to cut:

| text                   | tokens                          |
|------------------------|---------------------------------|
| Well, it's 5:30, $3.50 | Well  ,  it  's  5:30  ,  $  3.50 |
| they don't; I cannot   | they  do  n't  ;  I  can  not   |
| He said "no" (twice).  | He  said  ``  no  ''  (  twice  )  . |
| Mr. Hu left the U.S.   | Mr.  Hu  left  the  U.S  .      |

A period stays with an abbreviation, and is cut off any other word that white space follows. At the
end of a line it is always cut off. Where NLTK asks a trained model for the ends of sentences, a
list of abbreviations has to do here. Straight double quotes become `` and '', for a reader of the
tokens could not tell which they were; that is also how decoding knows on which side a space goes.
"""

from __future__ import annotations

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

SHORT = "Mr Mrs Ms Dr St Gen Sen Rep Gov Rev Col Capt Lt Sgt Jr Sr vs etc No Inc Co Corp Prof Hon"
# A lookbehind may name alternatives of different lengths, but only at its top.
ABBREVIATED = "|".join([*(rf"\b{word}" for word in SHORT.split()), r"\b\p{L}", r"\.\p{L}"])
CUTS = (
    r"``|''",
    r"\.{2,}|…",
    r"--",
    r"[;@#$%&?!*<>(){}\[\]«»“”„‘’]",
    r"[:,](?!\d)",
    # Ruby's $, which this library has, is the end of a line.
    r"""(?<!\.)\.(?=[\])}>"'»”’]*\s*$)""",
    rf"""(?<!\.|{ABBREVIATED})\.(?=[\])}}>"'»”’]*\s)""",
    r"(?<=\w)(?i:n't|'ll|'re|'ve|'[smd])(?!\w)",
    r"(?<=[^\s'])'(?!\w)",
    r"'(?=[^\W\d_mtsdnMTSDN]\b)",
    r"(?i:(?<=\bcan)not|(?<=\bgon|\bwan)na|(?<=\bgot)ta|(?<=\bgim|\blem)me|(?<=\bd)'ye)\b",
    r"(?i:\b'|(?<!\w)')(?i:t)(?=(?i:is|was)\b)",
)
"""What stands alone, wherever it is found."""
QUOTES = (
    (r'(?<![^\s\[({<])"', "``"),
    # Three single ones in a row could not be told apart.
    ("(?<=')\"", " ''"),
    ("\"(?=')", "'' "),
    ('"', "''"),
)
"""Straight double ones, as what they are: opening or closing."""
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


def quotes() -> list[normalizers.Normalizer]:
    """Straight double quotes by their side."""
    return [normalizers.Replace(Regex(pattern), text) for pattern, text in QUOTES]


def cut() -> pre_tokenizers.PreTokenizer:
    """Whatever stands alone, set apart; what is left still has its white space."""
    return pre_tokenizers.Split(Regex("|".join(CUTS)), "isolated")


def joined() -> list[decoders.Decoder]:
    """For a whole text of tokens, a space before each."""
    return [decoders.Replace(Regex(pattern), text) for pattern, text in JOINS]
