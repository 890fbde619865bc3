"""Makes genuine.tar.xz: checkpoints that TensorFlow itself wrote, beside the same weights as torch
stores them. Run once, in two environments, as transformers 5 has no TensorFlow classes:

    PYTHONPATH=backend:. python tests/weights/tensorflow/make_genuine.py torch WORK
    # with tensorflow-cpu 2.16, tf-keras 2.16, transformers 4.49 and safetensors
    TF_USE_LEGACY_KERAS=1 python tests/weights/tensorflow/make_genuine.py tensorflow WORK
    tar -C WORK --sort=name --owner=0 --group=0 --mtime=@0 -cJf genuine.tar.xz .

WORK/MODEL/torch is a Hugging Face folder. Beside it: `h5` and `shards` (save_pretrained), `tf2`
(tf.train.Checkpoint, with an optimizer), `tf1` (tf.compat.v1.train.Saver, under the names of
google-research and OpenAI, with partitioned variables, an optimizer's states and a step).
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 12,
    "vocab_size": 20,
    "max_position_embeddings": 9,
    "type_vocab_size": 1,
}
# Family -> class, keys of its configuration.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForPreTraining", SIZES),
    "albert": ("AlbertForSequenceClassification", {**SIZES, "embedding_size": 6}),
    "electra": ("ElectraForMaskedLM", {**SIZES, "embedding_size": 6}),
    "roberta": ("RobertaForTokenClassification", SIZES),
    "mpnet": ("MPNetForMaskedLM", SIZES),
    "distilbert": (
        "DistilBertForQuestionAnswering",
        {
            "dim": 8,
            "n_heads": 2,
            "n_layers": 1,
            "hidden_dim": 12,
            "vocab_size": 20,
            "max_position_embeddings": 9,
        },
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "n_embd": 8,
            "n_head": 2,
            "n_layer": 1,
            "n_positions": 9,
            "vocab_size": 20,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
    ),
}
PARTITIONED = {"bert/embeddings/word_embeddings": 0, "bert/pooler/dense/kernel": 1}
HPARAMS = {"n_vocab": 20, "n_ctx": 9, "n_embd": 8, "n_head": 2, "n_layer": 1}

Tensors = dict[str, Any]


def torch_folders(work: Path) -> None:
    import torch
    import transformers

    from tests.reference import randomise

    for family, (name, values) in MODELS.items():
        torch.manual_seed(0)
        model = getattr(transformers, name)(transformers.AutoConfig.for_model(family, **values))
        randomise(model, 0)
        model.save_pretrained(work / family / "torch")


def tensorflow_folders(work: Path) -> None:
    import tensorflow as tf
    import transformers
    from safetensors.numpy import load_file

    for family, (name, _) in MODELS.items():
        folder = work / family
        model = getattr(transformers, "TF" + name).from_pretrained(folder / "torch")
        model.save_pretrained(folder / "h5")
        if family == "bert":
            model.save_pretrained(folder / "shards", max_shard_size="3KB")
            (folder / "tf2").mkdir()
            optimizer = tf.keras.optimizers.Adam()
            optimizer.build(model.trainable_variables[:4])
            checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=tf.Variable(3))
            checkpoint.write(str(folder / "tf2" / "tf_ckpt"))
            shutil.copy(folder / "h5" / "config.json", folder / "tf2")
        tensors = load_file(folder / "torch" / "model.safetensors")
        config = json.loads((folder / "torch" / "config.json").read_text())
        if family == "bert":
            save_tf1(folder / "tf1", "bert_model.ckpt", google(tensors))
            kept = {key: config[key] for key in (*SIZES, "hidden_act")}
            (folder / "tf1" / "bert_config.json").write_text(json.dumps(kept))
        if family == "albert":
            save_tf1(folder / "tf1", "model.ckpt-best", google_albert(tensors))
            kept = {key: config[key] for key in (*SIZES, "hidden_act", "embedding_size")}
            (folder / "tf1" / "albert_config.json").write_text(json.dumps(kept))
        if family == "gpt2":
            save_tf1(folder / "tf1", "model.ckpt", openai(tensors))
            (folder / "tf1" / "hparams.json").write_text(json.dumps(HPARAMS))


def save_tf1(folder: Path, prefix: str, values: Tensors) -> None:
    import tensorflow.compat.v1 as tf

    folder.mkdir()
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in values.items():
            if name in PARTITIONED:
                axis = PARTITIONED[name]
                parts = tf.get_variable(
                    name,
                    value.shape,
                    partitioner=tf.fixed_size_partitioner(3, axis),
                    use_resource=False,
                )
                pieces = np.array_split(value, 3, axis)
                for part, piece in zip(parts, pieces, strict=True):
                    session.run(tf.assign(part, piece))
            else:
                session.run(tf.get_variable(name, initializer=value).initializer)
        slots = [
            tf.get_variable(f"{name}/adam_m", initializer=np.zeros_like(value))
            for name, value in [*values.items()][:3]
        ]
        session.run([tf.train.get_or_create_global_step().initializer])
        session.run([slot.initializer for slot in slots])
        tf.train.Saver().save(session, str(folder / prefix), write_meta_graph=False)


def google(tensors: Tensors) -> Tensors:
    """Under the names of google-research/bert."""
    own = {}
    for name, value in tensors.items():
        name = re.sub(r"layer\.(\d+)", r"layer_\1", name).replace(".", "/")
        if name.startswith("cls/seq_relationship/"):
            name = name.replace("weight", "output_weights").replace("bias", "output_bias")
        elif name == "cls/predictions/bias":
            name = "cls/predictions/output_bias"
        elif name in ("classifier/weight", "classifier/bias"):
            name = {"weight": "output_weights", "bias": "output_bias"}[name[11:]]
        elif "LayerNorm" in name:
            name = name.replace("/weight", "/gamma").replace("/bias", "/beta")
        elif name.endswith("_embeddings/weight"):
            name = name.removesuffix("/weight")
        elif name.endswith("/weight"):
            name, value = name.removesuffix("weight") + "kernel", np.ascontiguousarray(value.T)
        own[name] = value
    return own


def google_albert(tensors: Tensors) -> Tensors:
    """Under the names of google-research/albert."""
    renamed = {}
    for name, value in tensors.items():
        name = re.sub(r"^albert\.", "bert.", name).replace("bert.pooler.", "bert.pooler.dense.")
        name = name.replace("albert_layer_groups.", "transformer.group_")
        name = name.replace("albert_layers.", "inner_group_")
        name = re.sub(r"attention\.(query|key|value)", r"attention_1.self.\1", name)
        name = name.replace("attention.dense", "attention_1.output.dense")
        name = name.replace("attention.LayerNorm", "LayerNorm")
        name = name.replace("full_layer_layer_norm", "LayerNorm_1")
        name = name.replace("ffn_output", "ffn_1.intermediate.output.dense")
        renamed[name.replace(".ffn.", ".ffn_1.intermediate.dense.")] = value
    return google(renamed)


def openai(tensors: Tensors) -> Tensors:
    """Under the names of openai/gpt-2."""
    own = {}
    for name, value in tensors.items():
        name = name.removeprefix("transformer.").replace("h.", "h", 1).replace(".", "/")
        if "ln_" in name:
            name = name.replace("weight", "g").replace("bias", "b")
        elif name in ("wte/weight", "wpe/weight"):
            name = name.removesuffix("/weight")
        else:
            value = value[None] if value.ndim == 2 else value
            name = name.replace("weight", "w").replace("bias", "b")
        own[f"model/{name}"] = value
    return own


if __name__ == "__main__":
    step, work = sys.argv[1:]
    {"torch": torch_folders, "tensorflow": tensorflow_folders}[step](Path(work))
