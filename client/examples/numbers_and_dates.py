"""The training data of `tiny_translator.py`: numbers and dates, and their English and German
words."""

from __future__ import annotations

import random

LARGEST = 999_999
LANGUAGES = ("eng", "deu")

_ONES = {  # numbers up to 19
    "eng": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen",
    "deu": "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
    "fünfzehn sechzehn siebzehn achtzehn neunzehn",
}
_TENS = {
    "eng": "twenty thirty forty fifty sixty seventy eighty ninety",
    "deu": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
}
_MONTHS = {
    "eng": "January February March April May June July August September October November December",
    "deu": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
}


def english(number: int) -> str:
    if number < 20:
        return _ONES["eng"].split()[number]
    if number < 100:
        tens, ones = _TENS["eng"].split()[number // 10 - 2], number % 10
        return f"{tens}-{english(ones)}" if ones else tens
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    words = f"{english(number // size)} {name}"
    return f"{words} {english(number % size)}" if number % size else words


def german(number: int) -> str:
    words = _german(number)
    return f"{words}s" if words.endswith("ein") else words


def _german(number: int) -> str:
    """Returns the number as it is written in front of other words: ein, not eins."""
    if number < 20:
        return _ONES["deu"].split()[number]
    if number < 100:
        tens, ones = _TENS["deu"].split()[number // 10 - 2], number % 10
        return f"{_german(ones)}und{tens}" if ones else tens
    size, name = (1000, "tausend") if number >= 1000 else (100, "hundert")
    rest = german(number % size) if number % size else ""
    return f"{_german(number // size)}{name}{rest}"


def translated(source: str, language: str) -> str:
    """Returns the translation of a number (`347`) or a date (`2031-05-09`)."""
    if "-" not in source:
        return (english if language == "eng" else german)(int(source))
    year, month, day = source.split("-")
    name = _MONTHS[language].split()[int(month) - 1]
    return f"{int(day)}{'.' if language == 'deu' else ''} {name} {year}"


def a_source(rng: random.Random) -> str:
    """Returns a number, whose count of digits is uniformly distributed, or a date."""
    if rng.random() < 0.35:
        return f"{rng.randint(1000, 2999)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    digits = rng.randint(1, len(str(LARGEST)))
    return str(rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1))
