"""Creates the endpoint's models from the files that Triton loaded them from.

A model whose files cannot be used is left out until they can, so that the others are served.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fusewire.errors import ConfigurationError, FusewireError
from fusewire.generation.defaults import generation_config
from fusewire.models import blueprint_of, read_config, reads_images
from fusewire.models.config import Config
from fusewire.models.image_folders import parts_of
from fusewire.models.registry import encoder_of_texts
from fusewire.serving import model_config, repository
from fusewire.serving.config import ModelSettings
from fusewire.serving.gateway_protocol import ModelSource
from fusewire.serving.openai.generation import OUTPUTS
from fusewire.serving.openai.served import (
    CLASSIFY,
    EMBED,
    Encoder,
    Generator,
    ImageEncoder,
    Served,
    Transcriber,
)
from fusewire.serving.openai.transcriptions import OUTPUTS as OF_TRANSCRIPTIONS
from fusewire.settings import EngineSettings
from fusewire.tasks.contract import GENERATE, GENERATING, TRANSCRIBE
from fusewire.tasks.rerank import query_prompt, score_function
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.text_workers.workers import TextWorkers


class Models:
    """The models that generate, transcribe, embed or classify, by name. Each has its own text
    workers."""

    def __init__(self, sources: Mapping[str, ModelSource], chat_template: Path | None) -> None:
        """Loads all models that can be loaded. `chat_template`: a file that replaces those of the
        folders."""
        self._sources = sources
        self._chat_template = chat_template
        self.served: dict[str, Served] = {}
        self.left_out: dict[str, FusewireError | OSError] = {}
        self._load(list(sources))

    def load_left_out(self) -> list[str]:
        """Retries the models that were left out. Returns the names of those that are served now."""
        names = list(self.left_out)
        self._load(names)
        return [name for name in names if name in self.served]

    def _load(self, names: list[str]) -> None:
        # As many in parallel as there are cores.
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            results = list(threads.map(self._loaded, names))
        for name, result in zip(names, results, strict=True):
            self.left_out.pop(name, None)
            if isinstance(result, Served):
                self.served[name] = result
            elif result is not None:
                self.left_out[name] = result

    def _loaded(self, name: str) -> Served | FusewireError | OSError | None:
        """Returns the model, or the error for which it cannot be loaded, or None where the endpoint
        has no routes for it."""
        try:
            return _served(name, self._sources[name], self._chat_template)
        except (FusewireError, OSError) as error:
            return error


def _served(name: str, source: ModelSource, chat_template: Path | None) -> Served | None:
    config = model_config.of_json(source.config)
    if config.backend != model_config.BACKEND:
        return None
    settings = model_config.check(config, name)
    if settings.task == TRANSCRIBE:
        _check_outputs(config, name, OF_TRANSCRIPTIONS)
        return _transcriber(name, source.folder, settings.max_length)
    if settings.task in GENERATING:
        _check_outputs(config, name, OUTPUTS)
        return _generator(name, source.folder, settings.max_length, chat_template)
    if settings.task in (EMBED, CLASSIFY):
        assert isinstance(settings, ModelSettings)
        if reads_images(values := read_config(source.folder)):
            return _image_encoder(name, source.folder, values, settings.engine())
        return _encoder(name, settings.task, source.folder, settings.engine())
    return None


def _generator(name: str, folder: Path, max_length: int | None, file: Path | None) -> Generator:
    blueprint = blueprint_of(read_config(folder), GENERATE)
    encoder = blueprint.encoder
    longest = max_length or (encoder or blueprint).max_length  # of a prompt
    config, _ = generation_config(folder)
    draws = config.get("do_sample")
    if draws is None and (config.get("num_beams") or 1) != 1:
        draws = False  # beam search
    workers = TextWorkers(folder, max_length=longest, chat_template=file)
    return Generator(name, GENERATE, _ready(workers), longest, draws, encoder is not None)


def _transcriber(name: str, folder: Path, max_length: int | None) -> Transcriber:
    longest = max_length or blueprint_of(read_config(folder), GENERATE).max_length
    config, _ = generation_config(folder)
    workers = _ready(TextWorkers(folder, max_length=longest))
    multilingual = config.get("is_multilingual", True) is not False
    return Transcriber(name, TRANSCRIBE, workers, longest, multilingual)


def _encoder(name: str, task: str, folder: Path, settings: EngineSettings) -> Encoder:
    config = read_config(folder)
    blueprint = blueprint_of(config, task)
    most = blueprint.max_length
    files = SentenceFiles.read(folder) if task == EMBED else SentenceFiles()
    labels = len(Config(config).labels())
    ranks = task == CLASSIFY and labels == 1
    function = score_function(folder, config, labels) if ranks else ""
    prompt = query_prompt(folder) if ranks else ""
    width = files.embedding_size(blueprint.hidden_size)
    workers = _ready(TextWorkers(folder, max_length=most, lowercase=files.lowercase))
    named = files.max_length or workers.description()["max_length"]
    longest = settings.max_length or min(named or most, most)
    return Encoder(name, task, workers, longest, settings, files, width, labels, function, prompt)


def _image_encoder(
    name: str, folder: Path, config: Mapping[str, Any], settings: EngineSettings
) -> ImageEncoder:
    longest = 0
    if parts_of(folder, EMBED).texts:
        longest = encoder_of_texts(config).blueprint(Config(config)).max_length
    workers = _ready(TextWorkers(folder, max_length=longest))
    return ImageEncoder(name, EMBED, workers, longest, settings)


def _ready(workers: TextWorkers) -> TextWorkers:
    """Returns the workers once they have loaded the folder. Closes them where they cannot."""
    try:
        workers.description()
    except BaseException:
        workers.close()
        raise
    return workers


def _check_outputs(config: Any, name: str, outputs: Sequence[str]) -> None:
    """Raises ConfigurationError for an entry of an earlier version, which has fewer outputs than
    needed."""
    there = {output.name for output in config.output}
    missing = [output for output in outputs if output not in there]
    if missing:
        raise ConfigurationError(
            f"{name}/{repository.CONFIG}: got no output {missing[0]}, wanted the outputs of this "
            "version of fusewire; import the model again with --replace"
        )
