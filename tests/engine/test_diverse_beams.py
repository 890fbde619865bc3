"""Diverse beam search in the engine finds what the plain search finds over the same model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from fusewire.errors import CheckpointError, InvalidInput
from transformers.generation import logits_process as hf

from tests.engine.generating import ask
from tests.engine.test_beam_search import (
    STOPPING,
    Reference,
    engine_of,
    expect,
    loaded,
    random_prompt,
)
from tests.engine.test_seq2seq_generation import ENDS, seq2seq_folder
from tests.generation.diverse_beams import DiverseSearch, Rows, Text
from tests.tolerance import PIPELINE_SCORE

SHAPES = [(2, 2), (4, 2), (4, 4), (6, 2), (6, 3), (8, 4), (9, 3)]


def found_by(
    reference: Reference, prompt: list[int], search: DiverseSearch, processors: list
) -> list[tuple[float, Text]]:
    model = reference.model
    begin = [model.config.decoder_start_token_id] if reference.encoder_decoder else prompt

    def log_probs(texts: list[Text]) -> Rows:
        ids = torch.tensor([[*begin, *text] for text in texts])
        of_source = {}
        if reference.encoder_decoder:
            of_source = {"input_ids": torch.tensor([prompt] * len(texts)), "decoder_input_ids": ids}
        with torch.no_grad():
            logits = model(**(of_source or {"input_ids": ids})).logits[:, -1]
        return logits.float().log_softmax(-1).numpy()

    def process(rows: Rows, texts: list[Text]) -> Rows:
        scores, ids = torch.from_numpy(rows), torch.tensor([[*begin, *text] for text in texts])
        for each in processors:
            scores = each(ids, scores)
        return scores.numpy()

    return search.texts(log_probs, process)


def drawn(chosen: random.Random) -> dict[str, Any]:
    beams, groups = chosen.choice(SHAPES)
    return {
        "num_beams": beams,
        "num_beam_groups": groups,
        "diversity_penalty": chosen.choice([0.3, 1.0, 4.0]),
        "max_new_tokens": chosen.randint(3, 14),
        "length_penalty": chosen.choice([-1.0, 0.0, 0.6, 1.0, 2.0]),
        "early_stopping": chosen.choice(STOPPING),
    }


@pytest.mark.parametrize(
    "model_type", ["gpt2", "bart", pytest.param("t5", marks=pytest.mark.sweep)]
)
def test_texts_are_those_of_the_plain_search(tmp_path: Path, model_type: str):
    """Beside searches without groups, which they leave alone."""
    reference = loaded(tmp_path, model_type)
    chosen, asked, others = random.Random(model_type), [], []
    ends = {} if reference.encoder_decoder else {"stop_token_ids": ENDS}
    with engine_of(tmp_path) as engine:
        for turn in range(24):
            prompt, parameters = random_prompt(chosen, 30), drawn(chosen)
            processors: list = []
            if turn % 3 == 0:
                parameters |= {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}
                processors = [
                    hf.RepetitionPenaltyLogitsProcessor(1.3),
                    hf.NoRepeatNGramLogitsProcessor(2),
                ]
            options = {k: v for k, v in parameters.items() if k[:6] not in ("repeti", "no_rep")}
            search = DiverseSearch(eos=ENDS, **options)
            if model_type == "bart":
                longest = search.max_new_tokens + 1
                processors.append(hf.ForcedEOSTokenLogitsProcessor(longest, 2))
            wanted = found_by(reference, prompt, search, processors)
            parameters["n"] = min(len(wanted), search.num_beams)
            asked.append((wanted, parameters, ask(engine, prompt, **parameters, **ends)[0]))
            if turn % 4 == 0:
                plain = {"num_beams": 3, "n": 2, "max_new_tokens": 9}
                others.append((prompt, ask(engine, prompt, **plain, **ends)[0]))
        several = 0
        for wanted, parameters, answer in asked:
            answer.finish(parameters["n"])
            for index in range(parameters["n"]):
                score, text = wanted[index]
                assert answer.tokens(index) == list(text), parameters
                last = [delta for delta in answer.deltas if delta.index == index][-1]
                assert last.score == pytest.approx(score, PIPELINE_SCORE, PIPELINE_SCORE)
            several += len({answer.tokens(index)[0] for index in range(parameters["n"])}) > 1
        for prompt, answer in others:
            expect(answer.finish(2), reference.search(prompt, 3, 2, max_new_tokens=9))
        assert several > 12
        assert engine.cache.used == engine.cache.reserved == 0


def test_groups_that_cannot_be_are_refused(tmp_path: Path):
    seq2seq_folder(tmp_path, "bart", num_beams=6)
    with engine_of(tmp_path) as engine:
        for asked, message in (
            ({"num_beam_groups": 4}, "num_beam_groups: got 4, wanted a divisor of 6"),
            ({"num_beam_groups": 2, "num_beams": 1}, "num_beam_groups: got 2, wanted a divisor of"),
            ({"num_beam_groups": 2}, "diversity_penalty: got 0.0, wanted more than 0 with"),
            ({"diversity_penalty": 0.5}, "diversity_penalty: got 0.5, wanted 0 without num_beam"),
            ({"diversity_penalty": 0.5, "top_p": 0.9}, "diversity_penalty: got 0.5, wanted 0"),
        ):
            with pytest.raises(InvalidInput, match=message):
                engine.parameters(**asked)
        assert engine.parameters(num_beam_groups=3, diversity_penalty=0.5).num_beams == 6


def test_a_folders_groups_give_way(tmp_path: Path):
    groups = {"num_beam_groups": 3, "diversity_penalty": 0.5}
    model = seq2seq_folder(tmp_path, "bart", num_beams=6)

    def write(**options: Any) -> None:
        model.generation_config.save_pretrained(tmp_path)
        path = tmp_path / "generation_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | options))

    write(**groups)
    with engine_of(tmp_path) as engine:
        assert engine.parameters().num_beam_groups == 3
        assert engine.parameters(num_beams=4).num_beam_groups == 1
        assert engine.parameters(num_beams=9).num_beam_groups == 3
        assert engine.parameters(temperature=1.0).num_beam_groups == 1
        assert engine.parameters(diversity_penalty=0).num_beam_groups == 1
    write(num_beam_groups=4, diversity_penalty=0.5)
    with pytest.raises(CheckpointError, match="num_beam_groups: got 4, wanted a divisor of 6"):
        engine_of(tmp_path)
