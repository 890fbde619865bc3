"""`LLM`: generates texts for prompts, as vLLM's class of this name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fusewire.api.arguments import listed
from fusewire.api.generating_model import GeneratingModel
from fusewire.api.offline import Prompt, answers
from fusewire.api.outputs import RequestOutput
from fusewire.api.sampling_params import SamplingParams
from fusewire.errors import InvalidInput, type_name
from fusewire.generation.chat import FIELD as MESSAGES
from fusewire.generation.chat import Chat
from fusewire.generation.spelling import ALIASES
from fusewire.text.chat_template import ChatTemplate
from fusewire.text.text_processor import TextProcessor

Message = Mapping[str, Any]


class LLM(GeneratingModel):
    """Generates with a model folder or a Hugging Face id, many prompts at a time.

    All prompts of a call run in one engine with continuous batching, so passing a list of them is
    fastest. A context manager: on exit the model's memory is freed. Threads may share an LLM; their
    prompts then run together.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto",
        quantize: Literal["none", "int8", "fp8"] = "none",
        quantize_skip: Sequence[str] = (),
        revision: str | None = None,
        max_length: int | None = None,
        max_sequences: int | None = None,
        max_batch_tokens: int | None = None,
        max_waiting: int | None = None,
        kv_cache_mib: int | None = None,
        kv_cache_dtype: Literal["auto", "fp8"] = "auto",
        prefix_caching: bool = True,
        graphs: bool = True,
        threads: int = 0,
    ) -> None:
        """Loads the model and allocates the KV cache.

        Args:
            model: A model folder, or an id on Hugging Face.
            device: `auto` (the first GPU where there is one, else the CPU), `cpu`, `cuda` or
                `cuda:<index>`.
            dtype: Precision of the computation; `auto` is float32 on the CPU and float16 on a GPU.
                On the CPU `bfloat16` is the storage format of the matrices only, and the
                computation is in float32.
            quantize: Format of the weight matrices of the model's layers: `none` (that of
                `dtype`), `int8`, on Hopper GPUs `fp8`.
            quantize_skip: Names of matrices that are not quantised, as `fusewire import` selects
                and prints them.
            revision: Branch, tag or commit of a Hugging Face id.
            max_length: Maximum length of prompt and generated text together, in tokens; of an
                encoder-decoder model of each of them. Default: the model's number of positions.
            max_sequences: Maximum number of sequences that run at the same time. Default: 256 for
                decoders on a GPU, else 64, and at most max_batch_tokens.
            max_batch_tokens: Maximum number of tokens computed in one step. Default: 8192 on a GPU
                with 32 GiB of memory beside the weights, else 2048.
            max_waiting: Maximum number of sequences in the engine beyond those that run; further
                ones wait outside. Default: 256.
            kv_cache_mib: Size of the KV cache in MiB. Default: enough for max_sequences, or 64
                where that is not set, of max_length, at most nine tenths of a GPU's free memory or
                a quarter of the machine's.
            kv_cache_dtype: Data type of the KV cache: `auto` (that of the computation), on GPUs
                `fp8` (float8 e4m3, in half of the memory).
            prefix_caching: Reuse the KV pages of earlier prompts that begin with the same tokens.
            graphs: Capture steps as CUDA graphs and replay them; no effect on the CPU.
            threads: CPU threads; 0: one per core.

        Raises:
            CheckpointError: The folder cannot be read, or its model does not generate text.
            ConfigurationError: There is no such device, dtype or format here, or a value is out of
                range.
        """
        self._open(
            model,
            revision,
            device,
            large_steps=True,  # nobody reads the tokens of a list as they come
            dtype=dtype,
            quantize=quantize,
            quantize_skip=quantize_skip,
            max_length=max_length,
            max_sequences=max_sequences,
            max_batch_tokens=max_batch_tokens,
            max_waiting=max_waiting,
            kv_cache_mib=kv_cache_mib,
            kv_cache_dtype=kv_cache_dtype,
            prefix_caching=prefix_caching,
            graphs=graphs,
            threads=threads,
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **parameters: Any,
    ) -> list[RequestOutput]:
        """Answers prompts, in their order.

        Args:
            prompts: Texts, lists of token ids, or vLLM's `{"prompt": …}` and
                `{"prompt_token_ids": …}`; or one of these.
            sampling_params: Parameters for all prompts, or one for each.
            use_tqdm: Show progress and tokens/s on a terminal.
            **parameters: Fields of SamplingParams, in place of it: `max_new_tokens=128`, …

        Returns:
            A RequestOutput for each prompt.

        Raises:
            InvalidInput: A prompt or a parameter is out of range. Raised before anything is
                computed, with the index of the prompt.
            Unavailable: The model was closed.
            IncompleteOutputs: Some prompts failed while they were computed; the error has the
                outputs of the others.
        """
        many = _prompts(prompts)
        asked = _parameters(sampling_params, parameters, len(many))
        return answers(self.engine, self._turns, many, asked, shown=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> list[RequestOutput]:
        """Answers conversations, in their order, with the model's chat template.

        The template is rendered in the caller's process, without limits on time or memory: load
        models only from sources you trust, or serve them (`fusewire serve` renders in processes
        with limits).

        Args:
            messages: A conversation, a list of `{"role": …, "content": …}`; or a list of them.
                `content` is a text, or a list of parts `{"type": "text", "text": …}`.
            sampling_params: As for `generate`.
            use_tqdm: As for `generate`.
            add_generation_prompt: End each prompt with the beginning of the assistant's answer.
            chat_template_kwargs: Further variables of the template (`enable_thinking`, …).
            **parameters: As for `generate`.

        Returns:
            A RequestOutput for each conversation, without `prompt`.

        Raises:
            InvalidInput: As for `generate`; the model has no chat template, or the template
                rejects a conversation.
            IncompleteOutputs: As for `generate`.
        """
        conversations: list[Any] = listed(MESSAGES, messages, "messages")
        if _is_conversation(conversations):
            conversations = [conversations]
        prompts = []
        for index, conversation in enumerate(conversations):
            try:
                prompts.append(
                    self._chat.prompt(
                        conversation,
                        add_generation_prompt=add_generation_prompt,
                        chat_template_kwargs=chat_template_kwargs,
                    )
                )
            except InvalidInput as error:
                raise error.at(f"{MESSAGES}[{index}]") from None
        asked = _parameters(sampling_params, parameters, len(prompts))
        return answers(self.engine, self._turns, prompts, asked, shown=use_tqdm, field=MESSAGES)

    @cached_property
    def _chat(self) -> Chat:
        template, longest = ChatTemplate.load(self._folder), self.engine.limits.max_length
        return Chat(TextProcessor(self.engine.tokenizer, template, longest).conversation)


_FORMS = {"prompt", "prompt_token_ids"}  # of a prompt in a dictionary


def _prompts(prompts: Any) -> list[Any]:
    """Returns a list of prompts, also for a single one, with dictionaries replaced by their
    contents."""
    if isinstance(prompts, np.ndarray) and not prompts.ndim:
        prompts = prompts.item()  # a number, or a text
    ids = isinstance(prompts, Sequence | np.ndarray) and not isinstance(prompts, (str, bytes))
    one = isinstance(prompts, (str, Mapping)) or (
        ids and len(prompts) > 0 and isinstance(prompts[0], Integral)
    )
    many = [prompts] if one else listed("prompts", prompts, "prompts")
    return [_plain(each, index) for index, each in enumerate(many)]


def _plain(prompt: Any, index: int) -> Any:
    if isinstance(prompt, Mapping):
        others = [
            name for name, given in prompt.items() if given is not None and name not in _FORMS
        ]
        if others or not prompt.keys() & _FORMS:
            got, wanted = f"keys {list(prompt)} at {index}", "'prompt' or 'prompt_token_ids' alone"
            raise InvalidInput("prompts", got, wanted, "give a text or token ids")
        ids = prompt.get("prompt_token_ids")
        if isinstance(ids, str):
            got, remedy = f"a text as 'prompt_token_ids' at {index}", "give it as 'prompt'"
            raise InvalidInput("prompts", got, "token ids", remedy)
        prompt = prompt.get("prompt") if ids is None else ids
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence | np.ndarray):
        got = f"{type_name(prompt)} at {index}"
        raise InvalidInput("prompts", got, "a text or a list of token ids", "give one of these")
    return prompt


def _parameters(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    parameters: Mapping[str, Any],
    count: int,
) -> list[dict[str, Any]]:
    """Returns the parameters of each prompt."""
    if sampling_params is None:
        return [dict(parameters)] * count
    if parameters:
        got = f"{', '.join(parameters)} together with it"
        raise InvalidInput("sampling_params", got, "one of them", "put all into SamplingParams")
    if isinstance(sampling_params, SamplingParams):
        return [_asked(sampling_params)] * count
    if not isinstance(sampling_params, Sequence) or not all(
        isinstance(each, SamplingParams) for each in sampling_params
    ):
        got, wanted = repr(sampling_params)[:80], "SamplingParams, or a list of them"
        raise InvalidInput("sampling_params", got, wanted, "write SamplingParams(max_tokens=…)")
    if len(sampling_params) != count:
        raise InvalidInput(
            "sampling_params",
            f"{len(sampling_params)} for {count} prompts",
            "one for all or one for each",
            "give as many",
        )
    return [_asked(each) for each in sampling_params]


def _asked(params: SamplingParams) -> dict[str, Any]:
    """The parameters under the names that they were given by, which errors repeat."""
    given = params.model_dump(exclude_unset=True)
    alias = {field: name for name, field in ALIASES.items() if params.named(field) == name}
    return {alias.get(field, field): value for field, value in given.items()}


def _is_conversation(messages: Any) -> bool:
    return isinstance(messages, Sequence) and len(messages) > 0 and isinstance(messages[0], Mapping)
