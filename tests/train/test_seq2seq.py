"""Encoder-decoder models train as transformers' own, packed on both sides."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from fusewire import train
from fusewire.errors import InvalidInput, Unsupported
from fusewire.models import Seq2SeqModel, load_decoder
from fusewire.train import Adam, CrossEntropy

from tests.models.paged_texts import greedy
from tests.tolerance import MODEL_FP32, TRAINED_VERSUS_EAGER
from tests.train.test_replace import expect_equal, gradients
from tests.train.tiny_models import SEQ2SEQ_MODELS, both, config_of, eager, ragged

BART, MARIAN = "BartForConditionalGeneration", "MarianMTModel"
T5, UMT5 = "T5ForConditionalGeneration", "UMT5ForConditionalGeneration"
BEGIN_WITH_THE_LAST = ("MBartForConditionalGeneration", "PLBartForConditionalGeneration")
OWN_WORDS = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 64}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SEQ2SEQ_MODELS),
    (BART, {"scale_embedding": False, "activation_function": "relu"}),
    (BART, {"tie_word_embeddings": False}),
    (BART, {"encoder_layers": 1, "decoder_layers": 3}),
    (MARIAN, OWN_WORDS),
    (T5, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    (T5, {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}),
    (UMT5, {"num_layers": 1, "num_decoder_layers": 3}),
]


def decoder_of(model: Any) -> Any:
    return model.get_decoder()


@pytest.mark.parametrize(("name", "more"), VARIANTS, ids=str)
def test_loss_and_gradients_are_those_of_transformers_in_fp64(
    name: str, more: dict[str, Any]
) -> None:
    theirs, ours = both(name, more=more)
    batch = ragged(name)
    expect_equal(gradients(ours, batch), gradients(theirs.double(), batch))


@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
@pytest.mark.parametrize("recompute", ["none", "norm", "activation", "layer"])
def test_segments_and_recomputation_change_nothing(name: str, recompute: str) -> None:
    """Also where segments of several layers have gradients of one source and one bias."""
    layers = {"num_decoder_layers": 4} if "T5" in name else {"decoder_layers": 4}
    batch = ragged(name)
    plain = gradients(both(name, more=layers)[1], batch)
    for segments in (1, 2, 3):
        ours = both(name, more=layers, segments=segments, recompute=recompute)[1]
        again = gradients(ours, batch)
        assert plain[0] == again[0]
        assert all(torch.equal(plain[1][n], again[1][n]) for n in plain[1])


@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
def test_targets_may_be_given_with_a_mask_of_their_own(name: str) -> None:
    theirs, ours = both(name)
    batch = ragged(name)
    labels = batch["labels"]
    batch["decoder_input_ids"] = labels.clamp(min=3).roll(1, 1)
    batch["decoder_attention_mask"] = (labels != -100).long()
    batch["labels"] = labels.clone()
    batch["labels"][:, 0] = -100
    expect_equal(gradients(ours, batch), gradients(theirs, batch))


@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
def test_labels_may_be_missing_anywhere(name: str) -> None:
    theirs, ours = both(name)
    batch = ragged(name)
    batch["labels"][0, :4] = -100
    # These begin a target with its last token: transformers wants one in each row.
    batch["labels"][1, int(name in BEGIN_WITH_THE_LAST) :] = -100
    expect_equal(gradients(ours, batch), gradients(theirs, batch))


@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
def test_padding_that_is_labelled_counts(name: str) -> None:
    """As in transformers, which ignores -100 alone."""
    theirs, ours = both(name)
    batch = ragged(name)
    batch["labels"][batch["labels"] == -100] = theirs.config.pad_token_id
    expect_equal(gradients(ours, batch), gradients(theirs, batch))


@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
def test_sources_may_have_no_mask_or_padding_on_the_left(name: str) -> None:
    theirs, ours = both(name)
    batch = ragged(name, (11, 11, 11))
    del batch["attention_mask"]
    expect_equal(gradients(ours, batch), gradients(theirs, batch))
    batch = ragged(name)
    for key in ("input_ids", "attention_mask"):
        batch[key] = batch[key].flip(1)
    expect_equal(gradients(ours, batch), gradients(theirs, batch))


@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
def test_both_sides_are_packed(name: str) -> None:
    """Neither padding of sources nor what is behind the last label of a target is computed."""
    _, ours = both(name)
    tokens = []
    for stack in (ours.get_encoder(), decoder_of(ours)):
        stack.embed_tokens.register_forward_hook(lambda _m, _i, out: tokens.append(out.shape[1]))
    ours(**ragged(name, (7, 12, 1, 5)))
    assert tokens == [25, 25]
    tokens.clear()
    ours(**ragged(name, (7, 12, 2)), decoder_attention_mask=torch.ones(3, 12))
    assert tokens == [21, 36]


@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
def test_a_batch_equals_its_pairs_alone(name: str) -> None:
    _, ours = both(name)
    ours.eval()
    batch = ragged(name)
    together = ours(**batch).logits
    for row, (length, target) in enumerate(zip((7, 12, 1, 9), (9, 1, 12, 7), strict=True)):
        alone = ours(
            input_ids=batch["input_ids"][row : row + 1, :length],
            labels=batch["labels"][row : row + 1, :target],
        ).logits
        assert torch.allclose(together[row, :target], alone[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
def test_embeddings_and_an_encoders_output_may_be_given(name: str) -> None:
    theirs, ours = both(name)
    batch = ragged(name)
    ids = batch.pop("input_ids")
    embedded = theirs.get_input_embeddings()(ids).detach()
    given = {**batch, "inputs_embeds": embedded}
    expect_equal(gradients(ours, given), gradients(theirs, given))
    states = torch.randn(4, 12, 32)
    found = []
    for model in (ours, theirs):
        leaf = states.clone().requires_grad_()
        found.append(gradients(model, {**batch, "encoder_outputs": (leaf,)}))
        assert leaf.grad is not None
        found[-1][1]["encoder_outputs"] = leaf.grad
    expect_equal(*found)
    constant = {**batch, "encoder_outputs": (states,)}
    expect_equal(gradients(ours, constant), gradients(theirs, constant))


@pytest.mark.parametrize("frozen", ["encoder", "decoder", "encoder_attn"])
def test_frozen_parts_get_no_gradient(frozen: str) -> None:
    theirs, ours = both(BART)
    for model in (theirs, ours):
        for name, parameter in model.named_parameters():
            if frozen in name.split("."):
                parameter.requires_grad_(False)
    expect_equal(gradients(ours, ragged(BART)), gradients(theirs, ragged(BART)))


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("name", [T5, UMT5])
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "alone"])
def test_biases_by_distance_are_frozen_or_train_alone(
    name: str, frozen: bool, segments: int
) -> None:
    """UMT5's are each layer's own, T5's all layers'."""
    theirs, ours = both(name, segments=segments)
    for model in (theirs, ours):
        for parameter_name, parameter in model.named_parameters():
            biased = "relative_attention_bias" in parameter_name
            parameter.requires_grad_(biased != frozen)
    expect_equal(gradients(ours, ragged(name)), gradients(theirs, ragged(name)))


def test_biases_by_distance_are_read_anew_and_accumulate() -> None:
    theirs, ours = both(T5)
    batch = ragged(T5)
    for _ in range(2):
        for model in (theirs, ours):
            for _ in range(2):
                model(**batch).loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.9)
    expect_equal(
        *((0.0, {n: p.grad for n, p in m.named_parameters()}) for m in (ours, theirs)),
    )


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize(
    ("name", "more"), [(BART, {"decoder_layers": 4}), (T5, {"num_decoder_layers": 4})]
)
def test_gradient_checkpointing_recomputes_layers(name: str, more: dict[str, Any]) -> None:
    found, peaks = [], []
    for checkpointing in (False, True):
        _, ours = both(name, dropout=0.1, more=more)
        if checkpointing:
            ours.gradient_checkpointing_enable()
        torch.manual_seed(2)
        found.append(gradients(ours, ragged(name)))
        peaks.append(decoder_of(ours).fusewire.segments[0].stack.stats()["peak_bytes"])
    assert peaks[1] < peaks[0] * 0.7
    assert all(torch.equal(found[0][1][n], found[1][1][n]) for n in found[0][1])


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (MARIAN, "model.decoder.layers.0.fc1.weight"),
        (T5, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
    ],
)
def test_copies_and_pickles_train_by_themselves(name: str, written: str) -> None:
    theirs, ours = both(name)
    batch = ragged(name)
    wanted = gradients(theirs, batch)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        with torch.no_grad():
            ours.get_parameter(written).zero_()
        expect_equal(gradients(other, batch), wanted)
        ours.load_state_dict(theirs.state_dict())
        expect_equal(gradients(ours, batch), wanted)


def hidden_of(
    model: Any, inputs: dict[str, torch.Tensor], target_mask: torch.Tensor
) -> torch.Tensor:
    """What the head reads; T5 has no base model in it, and scales in front of a tied head."""
    if model.base_model is not model:
        return model.base_model(**inputs, decoder_attention_mask=target_mask).last_hidden_state
    mask = inputs["attention_mask"]
    source = model.encoder(inputs["input_ids"], attention_mask=mask).last_hidden_state
    hidden = model.decoder(
        inputs["decoder_input_ids"],
        attention_mask=target_mask,
        encoder_hidden_states=source,
        encoder_attention_mask=mask,
    ).last_hidden_state
    scaled = not isinstance(model, transformers.MT5ForConditionalGeneration)
    return hidden * (model.config.d_model**-0.5 if scaled else 1.0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
def test_the_criterion_in_chunks_is_that_of_transformers(name: str, smoothing: float) -> None:
    theirs, ours = both(name)
    batch = ragged(name)
    labels = batch["labels"]
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    inputs["decoder_input_ids"] = labels.clamp(min=3).roll(1, 1)
    theirs.zero_grad()
    logits = theirs(**inputs).logits.flatten(0, 1)
    wanted = torch.nn.functional.cross_entropy(logits, labels.flatten(), label_smoothing=smoothing)
    wanted.backward()
    criterion = CrossEntropy(label_smoothing=smoothing, logit_bytes=4 * 61 * 8)
    hidden = hidden_of(ours, inputs, (labels != -100).long())
    bias = getattr(ours, "final_logits_bias", [None])[0]
    loss = criterion(hidden, ours.lm_head.weight, labels, bias)
    loss.backward()
    found = [
        (float(value.detach()), {n: p.grad for n, p in m.named_parameters() if p.grad is not None})
        for m, value in ((ours, loss), (theirs, wanted))
    ]
    expect_equal(*found)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
def test_a_model_in_training_generates(name: str, beams: int) -> None:
    theirs, ours = both(name)
    batch = ragged(name)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    wanted = theirs.eval().generate(**inputs, max_new_tokens=8, num_beams=beams)
    got = ours.eval().generate(**inputs, max_new_tokens=8, num_beams=beams, use_cache=False)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    ("name", "more"), [*((name, {}) for name in SEQ2SEQ_MODELS), (MARIAN, OWN_WORDS)], ids=str
)
def test_what_is_trained_is_saved_and_served(
    name: str, more: dict[str, Any], tmp_path: Path
) -> None:
    _, ours = both(name, dropout=0.1, more=more)
    optimizer = Adam(ours.parameters(), lr=1e-3)
    for step in range(5):
        optimizer.zero_grad()
        ours(**ragged(name, seed=step)).loss.backward()
        optimizer.step()
    ours.save_pretrained(tmp_path)
    reread = type(ours).from_pretrained(tmp_path, attn_implementation="eager").eval()
    batch = ragged(name)
    there = batch["labels"] != -100
    with torch.no_grad():
        wanted, trained = (model(**batch).logits for model in (reread, ours.eval()))
    assert torch.allclose(trained[there], wanted[there], atol=MODEL_FP32)
    served = load_decoder(tmp_path)
    assert isinstance(served, Seq2SeqModel)
    sources = [batch["input_ids"][row, :length].tolist() for row, length in ((0, 7), (3, 9))]
    start = ours.config.decoder_start_token_id
    for source, written in zip(
        sources, greedy(served, [[start], [start]], 9, sources=sources), strict=True
    ):
        ids = torch.tensor([source])
        target = [start]
        with torch.no_grad():
            for _ in range(9):
                logits = reread(input_ids=ids, decoder_input_ids=torch.tensor([target])).logits
                target.append(int(logits[0, -1].argmax()))
        assert written == target[1:]


def pairs(name: str, count: int = 32) -> list[dict[str, Any]]:
    """Of 2 to 12 tokens each, padded; with the targets' tokens, which a smoothed loss needs."""
    made = ragged(name, tuple(2 + row % 11 for row in range(count)))
    labels = made["labels"]
    made["decoder_input_ids"] = eager(name).prepare_decoder_input_ids_from_labels(labels)
    return [{key: values[row] for key, values in made.items()} for row in range(count)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_seq2seq_trainer_learns_as_with_transformers_own_layers(
    smoothing: float, tmp_path: Path
) -> None:
    losses, written = [], []
    for model in both(BART):
        arguments = transformers.Seq2SeqTrainingArguments(
            output_dir=str(tmp_path),
            max_steps=6,
            per_device_train_batch_size=4,
            learning_rate=1e-3,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            dataloader_pin_memory=False,
            label_smoothing_factor=smoothing,
            predict_with_generate=True,
        )
        replaced = hasattr(decoder_of(model), "fusewire")
        model.generation_config.use_cache = not replaced
        made = transformers.Seq2SeqTrainer(model=model, args=arguments, train_dataset=pairs(BART))
        made.train()
        losses.append([entry["loss"] for entry in made.state.log_history if "loss" in entry])
        predicted = made.predict(pairs(BART, 6), max_length=9)
        losses[-1].append(predicted.metrics["test_loss"])
        written.append(predicted.predictions.tolist())
    assert len(losses[0]) == 7
    assert losses[1] == pytest.approx(losses[0], rel=TRAINED_VERSUS_EAGER)
    assert written[1] == written[0]


def test_an_encoder_of_t5_trains_alone() -> None:
    torch.manual_seed(1)
    theirs = transformers.T5EncoderModel(config_of(T5)).train()
    ours = train.replace(copy.deepcopy(theirs))
    batch = {key: ragged(T5)[key] for key in ("input_ids", "attention_mask")}
    weights = torch.randn(32) * batch["attention_mask"][..., None]
    found = []
    for model in (ours, theirs):
        loss = (model(**batch).last_hidden_state * weights).sum()
        loss.backward()
        found.append((float(loss.detach()), {n: p.grad for n, p in model.named_parameters()}))
    expect_equal(*found)


class TestRefusals:
    @pytest.mark.parametrize("side", ["encoder", "decoder"])
    def test_layers_that_are_left_out(self, side: str) -> None:
        with pytest.raises(Unsupported, match=rf"{side}_layerdrop: got 0.1, wanted 0"):
            train.replace(eager(BART, **{f"{side}_layerdrop": 0.1}))
        _, ours = both(BART)
        getattr(ours.model, side).layerdrop = 0.2
        with pytest.raises(Unsupported, match=r"layerdrop: got 0.2, wanted 0.*transformers itself"):
            ours(**ragged(BART))

    @pytest.mark.parametrize("name", ["BartForCausalLM", "MarianForCausalLM"])
    def test_a_decoder_without_an_encoder(self, name: str) -> None:
        config = eager(BART if name.startswith("Bart") else MARIAN).config
        alone = getattr(transformers, name)(config)
        wanted = "is_encoder_decoder: got False, wanted True.*transformers itself"
        with pytest.raises(Unsupported, match=wanted):
            train.replace(alone)
        _, ours = both(BART)
        with pytest.raises(InvalidInput, match="encoder_hidden_states: got none"):
            decoder_of(ours)(input_ids=torch.ones(2, 3, dtype=torch.long))

    def test_sources_of_another_batch(self) -> None:
        _, ours = both(BART)
        states, ids = torch.zeros(3, 5, 32), torch.ones(2, 3, dtype=torch.long)
        with pytest.raises(InvalidInput, match=r"got shape \[3, 5, 32\], wanted \[2, source"):
            decoder_of(ours)(input_ids=ids, encoder_hidden_states=states)

    @pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
    def test_targets_of_another_length(self, name: str) -> None:
        _, ours = both(name)
        batch = ragged(name)
        starts = batch["labels"].clamp(min=3)[:, :-1]
        wanted = r"labels: got shape \[4, 12\], wanted \[4, 11\] as decoder_input_ids"
        with pytest.raises(InvalidInput, match=wanted):
            ours(**batch, decoder_input_ids=starts)
        with pytest.raises(InvalidInput, match=wanted):
            ours(batch["input_ids"], batch["attention_mask"], starts, labels=batch["labels"])
        wanted = r"^decoder_attention_mask: got shape \[4, 12\], wanted \[4, 11\] as decoder_input"
        with pytest.raises(InvalidInput, match=wanted):
            ours.base_model(
                batch["input_ids"],
                decoder_input_ids=starts,
                decoder_attention_mask=torch.ones(4, 12),
            )

    def test_flattened_batches(self) -> None:
        _, ours = both(BART)
        offsets = torch.tensor([0, 7, 12])
        with pytest.raises(Unsupported, match=r"cu_seq_lens_q: got a flattened batch.*padded"):
            ours(**ragged(BART), cu_seq_lens_q=offsets)

    @pytest.mark.parametrize("argument", ["output_attentions", "output_hidden_states"])
    def test_an_argument_names_itself_and_the_fallback(self, argument: str) -> None:
        _, ours = both(MARIAN)
        with pytest.raises(Unsupported, match=f"MarianEncoder.forward: {argument}.*not replaced"):
            ours(**ragged(MARIAN), **{argument: True})

    def test_keys_and_values_of_earlier_tokens(self) -> None:
        _, ours = both(BART)
        inputs = {key: ragged(BART)[key] for key in ("input_ids", "attention_mask")}
        with pytest.raises(Unsupported, match=r"(past_key_values|cache): .*use_cache=False"):
            ours.eval().generate(**inputs, max_new_tokens=3)

    @pytest.mark.parametrize("attribute", ["dropout", "activation_dropout"])
    def test_another_dropout_of_a_layer(self, attribute: str) -> None:
        _, ours = both(MARIAN, dropout=0.1)
        setattr(decoder_of(ours).layers[1], attribute, 0.0)
        with pytest.raises(Unsupported, match=rf"\({attribute}\): got 0.0, wanted 0.1"):
            ours(**ragged(MARIAN))
