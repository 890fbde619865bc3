"""Trains a Marian model to write numbers in words: Hugging Face's Seq2SeqTrainer.

    pip install 'fusewire[train]' matplotlib
    python examples/train_translator.py FOLDER [--steps STEPS]
    fusewire serve translator=FOLDER

`347` becomes "three hundred forty seven". The numbers are drawn here, up to 999,999. Sources and
targets are both packed: the collator's padding is not computed. The model, its tokenizer and the
loss curve, loss.png, are written to FOLDER.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import fusewire
import transformers as hf
from fusewire.train import Adam, replace
from matplotlib.figure import Figure
from tokenizers import Tokenizer, models, pre_tokenizers, processors

NAMES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
ONES, TENS = NAMES.split()[:20], NAMES.split()[20:]
SPECIAL = ["</s>", "<unk>", "<pad>"]
LONGEST = 24  # maximum tokens of a source or target
HELD_OUT = 200  # numbers that are not trained on


def spelled(number: int) -> str:
    if number < 20:
        return ONES[number]
    if number < 100:
        words, rest = TENS[number // 10 - 2], number % 10
    else:
        size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
        words, rest = f"{spelled(number // size)} {name}", number % size
    return f"{words} {spelled(rest)}" if rest else words


def numbers(count: int) -> list[int]:
    """Returns different numbers, of each count of digits equally many as long as there are
    enough."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[random.randrange(10 ** random.randint(1, 6))] = None
    return random.sample(list(found), count)  # shuffled: short numbers were found first


def tokenizer_of_words() -> hf.PreTrainedTokenizerFast:
    """Returns a tokenizer with a token for each digit, each word and the end of a text."""
    known = [*SPECIAL, *"0123456789", *NAMES.split(), "hundred", "thousand"]
    vocabulary = {token: number for number, token in enumerate(known)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    splits = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    end = ("</s>", vocabulary["</s>"])
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[end])
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def untrained(tokenizer: hf.PreTrainedTokenizerFast) -> hf.MarianMTModel:
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    special = {"eos_token_id": end, "pad_token_id": pad, "decoder_start_token_id": pad}
    config = hf.MarianConfig(
        vocab_size=len(tokenizer),
        d_model=96,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_position_embeddings=LONGEST,
        scale_embedding=True,
        activation_function="relu",
        dropout=0.0,
        init_std=0.1,
        forced_eos_token_id=end,
        **special,
    )
    model = hf.MarianMTModel(config)
    # Saved with the weights: the generation defaults of the folder.
    model.generation_config = hf.GenerationConfig(
        num_beams=4, max_length=LONGEST, bad_words_ids=[[pad]], forced_eos_token_id=end, **special
    )
    return model


def main(folder: str, steps: int) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)  # fails before training rather than after it
    hf.set_seed(0)
    tokenizer = tokenizer_of_words()
    drawn = numbers(20_000 + HELD_OUT)
    held_out, trained_on = drawn[:HELD_OUT], drawn[HELD_OUT:]
    pairs = [tokenizer(str(n), text_target=spelled(n)) for n in trained_on]

    model = replace(untrained(tokenizer))
    # Our Adam clips, so the Trainer need not.
    optimizer = Adam(model.parameters(), lr=2e-3, max_grad_norm=1.0)
    arguments = hf.Seq2SeqTrainingArguments(
        folder,
        max_steps=steps,
        max_grad_norm=0,
        per_device_train_batch_size=64,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    schedule = hf.get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)
    pad = hf.DataCollatorForSeq2Seq(tokenizer, model)
    both = optimizer, schedule
    trainer = hf.Seq2SeqTrainer(model, arguments, pad, pairs, optimizers=both)
    trainer.train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    losses = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
    (figure := Figure()).subplots(subplot_kw={"xlabel": "step", "ylabel": "loss"}).plot(
        losses.keys(), losses.values()
    )
    figure.savefig(f"{folder}/loss.png")

    with fusewire.LLM(folder) as llm:
        outputs = llm.generate([str(n) for n in held_out], num_beams=4)
        right = sum(o.outputs[0].text == spelled(n) for n, o in zip(held_out, outputs, strict=True))
        print(f"{right} of {HELD_OUT} held out numbers are right")
        (found,) = llm.generate("700707", num_beams=4, n=4)
    for text in found.outputs:
        print(f"{text.score:7.3f}  {text.text}")
    print(f"To serve it: fusewire serve translator={folder}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where the model goes")
    parser.add_argument("--steps", type=int, default=600)
    main(**vars(parser.parse_args()))
