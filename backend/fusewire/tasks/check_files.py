"""Reads the files beside a folder's weights as serving does, to refuse them early."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusewire.errors import ConfigurationError
from fusewire.generation.defaults import generation_defaults
from fusewire.generation.speech import read_speech
from fusewire.models import blueprint_of, image_folders, reads_images
from fusewire.models.blueprint import Embeddings, Frames
from fusewire.models.config import Config
from fusewire.models.generation_config import eos_token_ids
from fusewire.models.registry import encoder_of_texts, reads_speech
from fusewire.tasks.classify import default_function
from fusewire.tasks.contract import GENERATE, GENERATING, SOURCE_TASKS, TRANSCRIBE
from fusewire.tasks.registry import task_type
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.text.chat_template import ChatTemplate
from fusewire.text.detokenizer import Detokenizer
from fusewire.text.tokenizer import Tokenizer
from fusewire.text.tower_tokenizer import TowerTokenizer


def check_files(folder: Path, config: Mapping[str, Any], task: str) -> Tokenizer | None:
    """Returns the folder's tokenizer, if it has one. Raises CheckpointError where an engine for the
    task, or the chat endpoint, would refuse the tokenizer, the chat template, the generation
    defaults or the sentence-transformers modules, and ConfigurationError for a task that the model
    does not have. `config`: config.json."""
    if reads_images(config):
        return _check_image_files(folder, config, task)
    if reads_speech(config) != (task == TRANSCRIBE):
        of = "speech" if reads_speech(config) else "texts"
        wanted = TRANSCRIBE if of == "speech" else "another task"
        raise ConfigurationError(
            f"task: got {task} for {config['model_type']}, a model of {of}, wanted {wanted}; "
            "choose it"
        )
    if task == TRANSCRIBE:
        return _check_speech_files(folder, config)
    if task in GENERATING:
        tokenizer = Tokenizer.required(folder)
        Detokenizer(tokenizer)
        reads_sources = blueprint_of(config, task).encoder is not None
        if task in SOURCE_TASKS and not reads_sources:
            raise ConfigurationError(
                f"task: got {task} for {config['model_type']}, wanted {GENERATE} for a model "
                "without an encoder; choose it, or an encoder-decoder model"
            )
        generation_defaults(folder, encoder_decoder=reads_sources)
        ChatTemplate.load(folder)
        return tokenizer
    if task == "embed":
        SentenceFiles.read(folder).embedding_size(blueprint_of(config, task).hidden_size)
    elif task == "classify":
        default_function(config.get("problem_type"), labels=1)
    found = Tokenizer.load(folder)
    if found is not None and task_type(task, images=False).needs_offsets:
        found.require_offsets(task)
    return found


def vocab_size_of(config: Mapping[str, Any], task: str) -> int:
    """Returns the number of tokens that texts may consist of: those that the model reads, or, for a
    model of speech, writes."""
    if reads_images(config):
        blueprint = encoder_of_texts(config).blueprint(Config(config))
    else:
        blueprint = blueprint_of(config, task)
    embeddings = (blueprint.encoder or blueprint.stack).embeddings
    if isinstance(embeddings, Frames):
        embeddings = blueprint.stack.embeddings
    assert isinstance(embeddings, Embeddings)
    return embeddings.word.rows


def _check_speech_files(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    blueprint = blueprint_of(config, TRANSCRIBE)
    encoder, vocab_size = blueprint.encoder, blueprint.task_heads["generate"].chain[-1].outputs
    assert encoder is not None
    assert isinstance(encoder.embeddings, Frames)
    shape = encoder.embeddings.frames, encoder.embeddings.bins
    eos = eos_token_ids(folder, blueprint.eos_token_ids)
    attentions = blueprint.stack.cross_attentions
    heads = len(attentions), attentions[0].heads
    _, tokens = read_speech(folder, shape, encoder.max_length, vocab_size, eos, heads)
    generation_defaults(folder, encoder_decoder=True, speech=tokens)
    tokenizer = Tokenizer.required(folder)
    Detokenizer(tokenizer)
    return tokenizer


def _check_image_files(folder: Path, config: Mapping[str, Any], task: str) -> Tokenizer | None:
    from fusewire.images import read_preprocessing  # ConfigurationError without Pillow

    read_preprocessing(folder, str(config["model_type"]))
    if not image_folders.parts_of(folder, task).texts:
        if task == "label":
            default_function(config.get("problem_type"), labels=1)
        return None
    tower = encoder_of_texts(config).blueprint(Config(config))
    TowerTokenizer(folder, max_length=tower.max_length, padded=not tower.eos_token_ids)
    return Tokenizer.load(folder)
