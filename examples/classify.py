"""Labels texts, here by sentiment.

    python examples/classify.py [MODEL] [TEXT]...

MODEL is a folder or a Hugging Face id.
"""

from __future__ import annotations

import sys

import fusewire

TEXTS = [
    "The film was wonderful: the best two hours of this year!",
    "A terrible, boring film; nobody should pay to see it.",
]


def main(
    model: str = "distilbert/distilbert-base-uncased-finetuned-sst-2-english", *texts: str
) -> None:
    classifier = fusewire.Classifier(model)
    chosen = list(texts) or TEXTS
    for text, best in zip(chosen, classifier(chosen), strict=True):
        print(f"{best['label']:10} {best['score']:.3f}  {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
