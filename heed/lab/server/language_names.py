"""Languages of a translation run: their codes, by its recipe, and their English names."""

from __future__ import annotations

from heed.config import Recipe
from heed.data.corpus import file_language

UNKNOWN = ("source", "target")
"""Codes of the two sides of a run whose recipe does not say which languages they are."""
NAMES = {
    "ar": "Arabic",
    "az": "Azerbaijani",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "ca": "Catalan",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "eo": "Esperanto",
    "es": "Spanish",
    "et": "Estonian",
    "eu": "Basque",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "ga": "Irish",
    "gl": "Galician",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "hu": "Hungarian",
    "id": "Indonesian",
    "is": "Icelandic",
    "it": "Italian",
    "ja": "Japanese",
    "ka": "Georgian",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "mk": "Macedonian",
    "ms": "Malay",
    "nb": "Norwegian",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sq": "Albanian",
    "sr": "Serbian",
    "sv": "Swedish",
    "sw": "Swahili",
    "ta": "Tamil",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
    "zh": "Chinese",
}


def recipe_languages(recipe: Recipe) -> tuple[str, str]:
    """The codes of source and target: by the names of the training files, else `UNKNOWN`."""
    if recipe.data.synthetic is not None:
        return "en", "fr"
    codes = list(dict.fromkeys(filter(None, map(file_language, recipe.data.train))))
    return (codes[0], codes[1]) if len(codes) == 2 else UNKNOWN


def language_name(code: str) -> str:
    """The English name of a language; its code where it is not known."""
    return NAMES.get(code, code)
