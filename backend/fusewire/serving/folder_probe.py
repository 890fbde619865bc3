"""Makes the probe of a checkpoint folder, which becomes the warm-up request of its entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError
from fusewire.models import blueprint_of, image_folders, read_config, reads_images
from fusewire.serving.config import GeneratorSettings, ModelSettings
from fusewire.serving.probe import ProbeTensor, without_tokenizer
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.text.tokenizer import Tokenizer
from fusewire.text.tokenizer_library import TokenizerFault
from fusewire.weights import open_folder

_TEXT = "Is this model awake?"


def probe(folder: Path, settings: ModelSettings | GeneratorSettings) -> list[ProbeTensor]:
    """Returns the probe of a checkpoint folder served with these settings, within their length
    limit. Empty where the task takes texts and none fits."""
    task = settings.task
    if isinstance(settings, GeneratorSettings):
        return without_tokenizer(task)
    folder = open_folder(folder)
    if reads_images(read_config(folder)):
        return _image(folder, task)
    tokenizer = Tokenizer.load(folder)
    if tokenizer is not None:
        files = SentenceFiles.read(folder) if task == "embed" else SentenceFiles()
        if files.lowercase:
            tokenizer.lowercase()
        prompt = files.prompt(settings.prompt_name) if settings.prompt is None else settings.prompt
        positions = blueprint_of(read_config(folder), task).max_length
        named = settings.max_length or files.max_length or tokenizer.max_length
        longest = min(named or positions, positions)
        for first, *second in _texts(tokenizer, task):
            if 1 <= _tokens(tokenizer, prompt + first, *second) <= longest:
                texts = zip(("text_input", "text_pair"), (first, *second), strict=False)
                return [ProbeTensor(name, (text,)) for name, text in texts]
    return without_tokenizer(task)


def _image(folder: Path, task: str) -> list[ProbeTensor]:
    """Returns an image of one patch and, where the model has no labels of its own, one label."""
    side = image_folders.patches_of(folder).size
    pixels = ProbeTensor("pixel_values", (0.0,) * (3 * side * side))
    zero_shot = task == "label" and image_folders.parts_of(folder, task).zero_shot
    return [pixels, *([ProbeTensor("candidate_labels", ("a",))] if zero_shot else [])]


def _texts(tokenizer: Tokenizer, task: str) -> tuple[tuple[str, ...], ...]:
    """Returns texts or pairs for a task, the longest first."""
    if task == "answer":
        return ("Who?", "Ada."), ("a", "b")
    if task != "fill":
        return (_TEXT,), ("a",), ("",)
    if tokenizer.mask_id is None:
        raise CheckpointError(
            "the tokenizer: got no mask token, wanted one for the task fill; choose another task"
        )
    return ((tokenizer.piece(tokenizer.mask_id),),)


def _tokens(tokenizer: Tokenizer, *texts: str) -> int:
    """Returns the number of tokens of a text or pair, 0 where the tokenizer fails."""
    text: Any = texts if len(texts) > 1 else texts[0]
    try:
        (encoding,) = tokenizer.encode([text], offsets=False)
    except TokenizerFault:
        return 0
    return len(encoding)
