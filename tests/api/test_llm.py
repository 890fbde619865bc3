"""`LLM` answers lists of prompts as the engine does one by one, with vLLM's names."""

from __future__ import annotations

import gc
import inspect
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fusewire
import numpy as np
import pytest
from fusewire import LLM, SamplingParams, kernels
from fusewire.api.outputs import IncompleteOutputs
from fusewire.api.turns import Turns
from fusewire.engine.finished import Finished
from fusewire.engine.generation_loop import GenerationLoop
from fusewire.errors import ConfigurationError, InvalidInput, Unavailable
from fusewire.generation.spelling import canonical
from fusewire.text.chat_template import ChatTemplate

from tests.engine.generating import END, between_steps, is_greedy, tiny_folder

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
PROMPTS = ["Once", "upon a time", "there was", "é", "a queen"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_folder(tmp_path_factory.mktemp("llm"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    """Few places, so that most prompts wait outside."""
    with LLM(folder, device="cpu", max_sequences=4, max_waiting=3) as llm:
        yield llm


def test_answers_are_greedy_as_those_of_transformers(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=12))
    assert [output.prompt for output in outputs] == PROMPTS
    for output in outputs:
        assert bytes_of(output.prompt) == output.prompt_token_ids
        (text,) = output.outputs
        assert is_greedy(output.prompt_token_ids, text.token_ids, 12)
        assert text.finish_reason == ("stop" if END in text.token_ids else "length")
        assert text.text == llm.engine.tokenizer.decode(text.token_ids, skip_special_tokens=True)
        assert (output.usage.prompt_tokens, output.usage.completion_tokens) == (
            len(output.prompt_token_ids),
            len(text.token_ids),
        )
        assert output.usage.total_tokens == sum(map(len, (output.prompt_token_ids, text.token_ids)))


def bytes_of(text: str | None) -> list[int]:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    [(spelled, _)] = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    ).pre_tokenize_str(text)
    return [alphabet.index(character) for character in spelled]


def test_600_prompts_go_through_a_small_queue_in_order(llm: LLM) -> None:
    prompts = [f"prompt {n}" for n in range(600)]
    outputs = llm.generate(prompts, max_new_tokens=2, ignore_eos=True)
    assert [output.prompt for output in outputs] == prompts
    assert all(output.usage.completion_tokens == 2 for output in outputs)
    alone = llm.generate(prompts[577], max_new_tokens=2, ignore_eos=True)
    assert alone[0].outputs[0].token_ids == outputs[577].outputs[0].token_ids


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    each = [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in range(1, 6)]
    outputs = llm.generate(PROMPTS, each)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3, 4, 5]
    with pytest.raises(InvalidInput, match="sampling_params: got 5 for 1 prompts"):
        llm.generate("x", each)
    for wrong in ({"max_tokens": 1}, 5, [None]):
        with pytest.raises(InvalidInput, match="wanted SamplingParams, or a list of them"):
            llm.generate(["a"], wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="sampling_params: got max_tokens together with it"):
        llm.generate("x", each[0], max_tokens=2)


def test_prompts_are_texts_ids_or_dictionaries(llm: LLM) -> None:
    ids = bytes_of("Once")
    forms: list[Any] = ["Once", ids, {"prompt": "Once"}, {"prompt_token_ids": ids}, np.array(ids)]
    answers = [llm.generate([form], max_new_tokens=3) for form in forms]
    assert len({tuple(answer[0].outputs[0].token_ids) for answer in answers}) == 1
    assert [answer[0].prompt for answer in answers] == ["Once", None, "Once", None, None]
    assert llm.generate(np.array("Once"), max_new_tokens=3)[0].prompt == "Once"
    absent: Any = {"prompt": "Once", "prompt_token_ids": None}
    assert llm.generate(absent, max_new_tokens=3)[0].prompt == "Once"
    (alone,) = llm.generate(ids, max_new_tokens=3)
    assert alone.prompt_token_ids == ids
    assert llm.generate(np.array(ids), max_new_tokens=3)[0].prompt_token_ids == ids
    assert llm.generate([], max_new_tokens=3) == []


@pytest.mark.parametrize("given", [None, b"x", 3, {"prompt": None}])
def test_what_is_no_prompt_is_named_with_its_place(llm: LLM, given: Any) -> None:
    got = rf"prompts: got {'int' if given == 3 else 'bytes|NoneType|None'} at 1, wanted a text or"
    with pytest.raises(InvalidInput, match=got):
        llm.generate(["a", given])
    with pytest.raises(InvalidInput, match="prompts: got int, wanted a list of prompts"):
        llm.generate(np.array(5), max_new_tokens=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"prompts: got keys \['text'\] at 1, wanted"):
        llm.generate(["a", {"text": "b"}])
    with pytest.raises(InvalidInput, match=r"prompts: got keys \['prompt', 'image'\] at 1, wanted"):
        llm.generate(["a", {"prompt": "b", "image": 3}])
    with pytest.raises(InvalidInput, match="got a text as 'prompt_token_ids' at 1, wanted token"):
        llm.generate(["a", {"prompt_token_ids": "12"}])
    with pytest.raises(InvalidInput, match=r"^prompts\[1\]: .*\(a lone surrogate\), wanted"):
        llm.generate(["a", "b\ud800"])


def test_a_conversation_may_have_parts_of_text(llm: LLM) -> None:
    parts: list[Any] = [{"type": "text", "text": each} for each in ("a", "b")]
    one, other = (
        llm.chat([{"role": "user", "content": content}], max_new_tokens=2)[0].prompt_token_ids
        for content in (parts, "a\nb")
    )
    assert one == other


def test_a_closed_one_says_so(folder: Path) -> None:
    with LLM(folder, device="cpu") as llm:
        pass
    with pytest.raises(Unavailable, match="model: got a call after it was closed"):
        llm.generate("a")


def test_its_memory_is_free_for_others_once_it_is_closed_or_dropped(folder: Path) -> None:
    """What other tests left may be freed meanwhile too, so memory is seen to fall by a cache."""
    allocator = kernels.default_allocator("cpu")

    def held() -> np.ndarray:
        """In use, and taken from the system, in caches of a model here."""
        stats = allocator.stats()
        return np.array([stats["allocated_bytes"], stats["reserved_bytes"]]) / (64 << 20)

    with LLM(folder, device="cpu", kv_cache_mib=64) as llm:
        llm.generate("a", max_new_tokens=2)
        used = held()
    assert (held() < used - 0.8).all()  # although `llm` is still known here
    llm.close()
    dropped = LLM(folder, device="cpu", kv_cache_mib=64)
    dropped.generate("a", max_new_tokens=2)
    used, thread = held(), dropped.engine._thread._thread
    del dropped
    assert (held() < used - 0.8).all()
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("device", "needed_bytes", "tokens"),
    [
        ("cpu", 0, 2048),
        pytest.param("cuda", 0, 8192, marks=pytest.mark.gpu),
        pytest.param("cuda", 1 << 60, 2048, marks=pytest.mark.gpu),
    ],
)
def test_steps_are_large_on_a_gpu_with_memory_for_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, device: str, needed_bytes: int, tokens: int
) -> None:
    monkeypatch.setattr("fusewire.engine.generation_memory.LARGE_STEP_FREE_BYTES", needed_bytes)
    with LLM(folder, device=device, kv_cache_mib=64) as llm:
        assert llm.engine.settings.max_batch_tokens == tokens
    with LLM(folder, device=device, kv_cache_mib=64, max_batch_tokens=100) as llm:
        assert llm.engine.settings.max_batch_tokens == 100


@pytest.mark.gpu
def test_one_after_another_takes_no_more_of_a_gpu(folder: Path) -> None:
    """Kernels keep scratch memory for each stream, and a new model has a stream of its own."""
    allocator = kernels.default_allocator("cuda")

    def kept_bytes() -> int:
        with LLM(folder, device="cuda", kv_cache_mib=64) as llm:
            llm.generate("a", max_new_tokens=2)
        gc.collect()
        allocator.trim()
        return allocator.stats()["reserved_bytes"]

    kept = kept_bytes()
    assert kept_bytes() == kept


def test_one_that_is_collected_in_its_own_thread_is_closed_by_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector runs in any thread; this one cannot wait for its own end."""
    llm = LLM(folder, device="cpu", kv_cache_mib=64)
    llm.itself = llm  # type: ignore[attr-defined] # so that only the collector finds it
    own, faults = llm.engine._thread, []
    monkeypatch.setattr(sys, "unraisablehook", faults.append)

    def collect() -> None:
        gc.collect()

    gc.disable()
    try:
        del llm
        own.call(collect)
    finally:
        gc.enable()
    own._thread.join(60)
    assert not own._thread.is_alive()
    assert not faults


def test_several_texts_and_log_probabilities(llm: LLM) -> None:
    params = SamplingParams(
        n=2, best_of=3, temperature=1.0, seed=5, max_tokens=4, ignore_eos=True, logprobs=2
    )
    one, again = llm.generate(["Once", "Once"], params)
    assert [text.index for text in one.outputs] == [0, 1]
    assert [t.token_ids for t in one.outputs] == [t.token_ids for t in again.outputs]
    assert one.usage.completion_tokens == 8
    likelihoods = [text.cumulative_logprob for text in one.outputs]
    assert likelihoods == sorted(likelihoods, reverse=True)  # the likelier first
    for text in one.outputs:
        assert text.logprobs is not None
        taken = [at[token].logprob for at, token in zip(text.logprobs, text.token_ids, strict=True)]
        assert sum(taken) == pytest.approx(text.cumulative_logprob, abs=1e-5)
        for at in text.logprobs:
            assert {1, 2} <= {each.rank for each in at.values()} <= set(range(1, 258))
            best = next(token for token, each in at.items() if each.rank == 1)
            assert at[best].decoded_token == llm.engine.tokenizer.decode([best])
    assert llm.generate("x", max_new_tokens=1)[0].outputs[0].logprobs is None


def test_a_prompts_tokens_have_log_probabilities(llm: LLM) -> None:
    prompts = ["Once upon", "a"]
    one, other = llm.generate(prompts, max_new_tokens=2, prompt_logprobs=2)
    assert one.prompt_logprobs is not None
    assert [entry is None for entry in one.prompt_logprobs] == [True] + [False] * 8
    for token, entry in list(zip(one.prompt_token_ids, one.prompt_logprobs, strict=True))[1:]:
        assert entry is not None
        assert {1, 2} <= {each.rank for each in entry.values()}
        assert entry[token].decoded_token == llm.engine.tokenizer.decode([token])
    assert other.prompt_logprobs == [None]
    (scored,) = llm.generate(prompts[0], max_new_tokens=0, prompt_logprobs=0)
    assert [len(entry) for entry in scored.prompt_logprobs[1:]] == [1] * 8
    assert (scored.outputs[0].text, scored.usage.completion_tokens) == ("", 0)
    assert llm.generate("x", max_new_tokens=1)[0].prompt_logprobs is None


@pytest.mark.parametrize("name", ["max_tokens", "max_new_tokens"])
def test_errors_name_a_parameter_as_it_was_given(llm: LLM, name: str) -> None:
    given: dict[str, Any] = {name: 9999}
    with pytest.raises(InvalidInput, match=rf"^prompts\[0\]: {name}: got 9999"):
        llm.generate("a", SamplingParams(**given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"prompts\[2\]: text_input: got 200 tokens, wanted at most 127"),
        ({"max_new_tokens": 126}, r"prompts\[1\]: max_new_tokens: got 126, wanted at most 125"),
        ({"top_p": 7.0}, r"prompts\[0\]: top_p: got 7.0"),
        ({"temprature": 1}, r"prompts\[0\]: temprature: got 1"),
    ],
)
def test_what_is_wrong_is_raised_before_anything_is_computed(
    llm: LLM, given: dict[str, Any], message: str
) -> None:
    before = between_steps(llm.engine, llm.engine.counts).tokens
    with pytest.raises(InvalidInput, match=message):
        llm.generate(["x", "xyz", "x" * 200], **given)
    assert between_steps(llm.engine, llm.engine.counts).tokens == before


def test_a_search_without_pages_is_refused_before_anything_is_computed(folder: Path) -> None:
    with LLM(folder, device="cpu", kv_cache_mib=1, max_sequences=32) as llm:
        search = SamplingParams(num_beams=32, max_tokens=32)
        pages = r"^prompts\[1\]: num_beams: got 32 beams of up to 122 tokens, .* at most 85 pages"
        with pytest.raises(InvalidInput, match=pages):
            llm.generate(["Once", "x" * 90], [SamplingParams(max_tokens=3), search])
        assert between_steps(llm.engine, llm.engine.counts).tokens == 0


def test_what_fails_while_computing_does_not_lose_the_others(llm: LLM) -> None:
    each = [SamplingParams(max_new_tokens=3, ignore_eos=True) for _ in PROMPTS]
    each[1] = SamplingParams(max_new_tokens=3, timeout_seconds=1e-9)
    with pytest.raises(IncompleteOutputs, match=r"^prompts\[1\]: timeout: .*1 of 5 failed") as got:
        llm.generate(PROMPTS, each)
    outputs = got.value.outputs
    assert [index for index, output in enumerate(outputs) if output is None] == [1]
    assert list(got.value.errors) == [1]
    assert outputs[4] is not None
    assert outputs[4].prompt == "a queen"
    assert len(outputs[4].outputs[0].token_ids) == 3


def test_an_interruption_cancels_what_runs(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fusewire.api.offline._ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, max_new_tokens=100, ignore_eos=True)
    monkeypatch.undo()
    tokens = llm.generate("x", max_new_tokens=1, ignore_eos=True)
    assert tokens[0].usage.completion_tokens == 1
    assert llm.engine.counts().running == 0


def test_threads_share_one_engine(llm: LLM) -> None:
    found: dict[int, list[Any]] = {}

    def ask(thread: int) -> None:
        found[thread] = llm.generate([f"{thread} {n}" for n in range(20)], max_new_tokens=2)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread, outputs in found.items():
        assert [output.prompt for output in outputs] == [f"{thread} {n}" for n in range(20)]


def test_a_thread_does_not_wait_for_the_end_of_anothers_list(folder: Path) -> None:
    """Whoever finds no room has the next one, and not the thread whose request ends."""
    with LLM(folder, device="cpu", max_sequences=1, max_waiting=1) as llm:
        ask = {"max_new_tokens": 4, "ignore_eos": True}
        long = threading.Thread(target=llm.generate, args=(["Once"] * 1000,), kwargs=ask)
        long.start()
        while not llm.engine.counts().running:
            pass
        outputs = llm.generate([f"{n}" for n in range(20)], **ask)
        waits = long.is_alive()
        long.join()
    assert [output.prompt for output in outputs] == [f"{n}" for n in range(20)]
    assert waits


def test_who_waited_longest_is_next_until_it_has_given_or_leaves() -> None:
    turns, first, second = Turns(), Finished(), Finished()
    turns.found_no_room(first, gave=False)
    assert turns.may_give(first)
    assert not turns.may_give(second)
    assert first.get_nowait() is None  # woken, to look for room
    turns.found_no_room(first, gave=False)  # there was none: it is still the first
    assert not turns.may_give(second)
    turns.found_no_room(first, gave=True)
    assert turns.may_give(second)
    assert not turns.may_give(first)
    turns.leave(second)
    assert turns.may_give(first)
    turns.leave(first)
    assert turns.may_give(second)


def test_its_reader_wakes_once_a_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that woke for each token would take the interpreter from the engine's thread."""
    woken: list[Any] = []
    monkeypatch.setattr(Finished, "get", counted(Finished.get, woken))
    llm.generate(PROMPTS, max_new_tokens=20, ignore_eos=True)
    assert 1 <= len(woken) <= len(PROMPTS)


def counted(get: Any, woken: list[Any]) -> Any:
    def counting(*args: Any, **given: Any) -> Any:
        found = get(*args, **given)
        woken.append(found)
        return found

    return counting


def test_conversations_are_rendered_by_the_folders_template(llm: LLM, folder: Path) -> None:
    messages = [{"role": "user", "content": "Who?"}]
    (output,) = llm.chat(messages, max_new_tokens=4)
    template = ChatTemplate.load(folder)
    assert template is not None
    assert output.prompt_token_ids == bytes_of(template.render(messages))
    assert is_greedy(output.prompt_token_ids, output.outputs[0].token_ids, 4)
    both = llm.chat([messages, [*messages, *messages]], SamplingParams(max_tokens=4))
    assert both[0].outputs[0].token_ids == output.outputs[0].token_ids
    assert len(both[1].prompt_token_ids) == 2 * len(output.prompt_token_ids)
    with pytest.raises(InvalidInput, match=r"messages\[1\]: role: got int"):
        llm.chat([messages, [{"role": 1}]])
    with pytest.raises(InvalidInput, match="add_generation_prompt: got 'false', wanted true or"):
        llm.chat(messages, add_generation_prompt="false")  # type: ignore[arg-type]


def test_without_a_template_there_is_no_chat(tmp_path: Path) -> None:
    with (
        LLM(tiny_folder(tmp_path), max_sequences=1) as llm,
        pytest.raises(InvalidInput, match="messages: got a conversation for a model whose folder"),
    ):
        llm.chat([{"role": "user", "content": "Who?"}])


def test_a_defect_of_the_engine_ends_the_call(folder: Path, monkeypatch: Any) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("broken")

    with LLM(folder, max_sequences=2) as llm:
        monkeypatch.setattr(GenerationLoop, "step", broken)
        with pytest.raises(IncompleteOutputs, match="this is a defect"):
            llm.generate(PROMPTS[:2], max_new_tokens=3)


def test_a_cache_without_kernels_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="kv_cache_dtype: got 'fp8' on cpu, wanted auto"):
        LLM(folder, device="cpu", kv_cache_dtype="fp8")
    with pytest.raises(ConfigurationError, match="kv_cache_dtype: got 'int8', wanted 'auto' or"):
        LLM(folder, device="cpu", kv_cache_dtype="int8")  # type: ignore[arg-type]


def test_sampling_params_are_those_of_requests() -> None:
    named = {canonical(name) for name in inspect.signature(SamplingParams.__init__).parameters}
    assert named - {"self", "others"} <= set(SamplingParams.model_fields)
    params = SamplingParams(max_tokens=3, temperature=0.5, detokenize=True)
    assert json.loads(params.model_dump_json(exclude_unset=True)) == {
        "max_new_tokens": 3,
        "do_sample": True,
        "temperature": 0.5,
    }
    with pytest.raises(InvalidInput, match="max_tokens: got -1, wanted at least 0"):
        SamplingParams(max_tokens=-1)
    with pytest.raises(InvalidInput, match="temprature: got 1, wanted one of"):
        SamplingParams(temprature=1)
    assert "max_tokens: 'int | None'" in str(inspect.signature(fusewire.SamplingParams))
