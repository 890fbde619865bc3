"""The systems under comparison. Each goes from ragged token ids to the last hidden state, fp32.

A system is a function `(folder, threads) -> run`, and `run(sequences)` takes a list of int64 arrays
and returns the system's own form of output. `packed` converts that to [tokens, hidden], real tokens
only, for the comparison of outputs; it is never timed. Each system runs in its own process (see
`arena.py`), so imports stay inside the functions and thread pools never interfere.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ctranslate2_module import import_ctranslate2
from benchmarks.rivals_openvino import openvino

Run = Callable[[list[np.ndarray]], Any]


def fusewire(folder: Path, threads: int, dtype: str = "auto", quantize: str = "none") -> Run:
    from fusewire import kernels
    from fusewire.models import load_model
    from fusewire.placement import Placement

    kernels.set_num_threads(threads)
    model = load_model(folder, "hidden", Placement("cpu", dtype, quantize))
    return lambda sequences: model.encode(batch_of(sequences))


def batch_of(sequences: list[np.ndarray]) -> Any:
    """Returns the batch that our models take."""
    from fusewire.batch import Batch, Sequence

    return Batch.pack([Sequence(ids, np.zeros(len(ids), np.int32)) for ids in sequences])


def transformers_eager(folder: Path, threads: int) -> Run:
    """transformers with its defaults: padded to the longest sequence, SDPA."""
    torch, model = load_bert(folder, threads)

    def run(sequences: list[np.ndarray]) -> Any:
        ids, mask = (torch.from_numpy(a) for a in padded(sequences))
        with torch.inference_mode():
            return model(input_ids=ids, attention_mask=mask).last_hidden_state

    return run


def torch_packed(folder: Path, threads: int) -> Run:
    """An optimised version in torch: packed tokens, one QKV GEMM, one SDPA call per sequence."""
    torch, model = load_bert(folder, threads)
    functional = torch.nn.functional
    heads = model.config.num_attention_heads
    layers = []
    for layer in model.encoder.layer:
        own = layer.attention.self
        parts = (own.query, own.key, own.value)
        layers.append(
            (
                torch.cat([p.weight for p in parts]).detach(),
                torch.cat([p.bias for p in parts]).detach(),
                layer,
            )
        )

    def run(sequences: list[np.ndarray]) -> Any:
        lengths = [len(ids) for ids in sequences]
        flat = torch.from_numpy(np.concatenate(sequences))
        positions = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths]))
        with torch.inference_mode():
            x = model.embeddings(
                input_ids=flat[None],
                token_type_ids=torch.zeros_like(flat)[None],
                position_ids=positions[None],
            )[0]
            for weight, bias, layer in layers:
                qkv = functional.linear(x, weight, bias).view(len(x), 3, heads, -1)
                attended = []
                for part in qkv.split(lengths):
                    q, k, v = (t.transpose(0, 1)[None] for t in part.unbind(1))
                    one = functional.scaled_dot_product_attention(q, k, v)[0]
                    attended.append(one.transpose(0, 1).flatten(1))
                output = layer.attention.output
                x = output.LayerNorm(output.dense(torch.cat(attended)) + x)
                inner = functional.gelu(layer.intermediate.dense(x))
                x = layer.output.LayerNorm(layer.output.dense(inner) + x)
            return x

    return run


def onnxruntime(folder: Path, threads: int, int8: bool = False) -> Run:
    """Exported from torch and fused by ONNX Runtime's own Transformer optimizer; padded."""
    torch, model = load_bert(folder, threads)
    ids = torch.randint(5, 100, (2, 7))
    both = {0: "batch", 1: "length"}
    session = fused_session(
        "bert",
        plain_bert(torch, model),
        (ids, torch.ones_like(ids), torch.zeros_like(ids)),
        {name: both for name in ("input_ids", "attention_mask", "token_type_ids")},
        {"last_hidden_state": both},
        model.config,
        threads,
        int8=int8,
    )

    def run(sequences: list[np.ndarray]) -> Any:
        ids, mask = padded(sequences)
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return session.run(None, feed)[0]

    return run


def fused_session(
    model_type: str,
    module: Any,
    example: tuple[Any, ...],
    inputs: dict[str, dict[int, str]],
    outputs: dict[str, dict[int, str]],
    config: Any,
    threads: int,
    int8: bool = False,
) -> Any:
    """Returns an ONNX Runtime session of a torch module, fused by ONNX Runtime's own Transformer
    optimizer. `inputs`, `outputs`: the dynamic axes by name. `int8`: quantised afterwards by its
    own tool, weights by channel and activations dynamically."""
    import onnxruntime as ort
    import torch
    from onnxruntime.transformers.optimizer import optimize_model

    with tempfile.TemporaryDirectory() as work:
        plain, fused = f"{work}/plain.onnx", f"{work}/fused.onnx"
        torch.onnx.export(
            module,
            example,
            plain,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=inputs | outputs,
            opset_version=17,
            dynamo=False,  # the optimizer's fusions match graphs of this exporter
        )
        optimized = optimize_model(
            plain, model_type, num_heads=config.num_attention_heads, hidden_size=config.hidden_size
        )
        counts = optimized.get_fused_operator_statistics()
        # An unfused graph would be slower than ONNX Runtime can be.
        if counts["Attention"] != config.num_hidden_layers:
            raise RuntimeError(f"onnxruntime: fused {counts}, wanted attention in every layer")
        optimized.save_model_to_file(fused)
        if int8:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            plain, fused = fused, f"{work}/int8.onnx"
            # Shape inference does not know the types after fused nodes: 1 is float32.
            types = {"DefaultTensorType": 1}
            quantize_dynamic(
                plain, fused, per_channel=True, weight_type=QuantType.QInt8, extra_options=types
            )
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        return ort.InferenceSession(fused, options, providers=["CPUExecutionProvider"])


def ctranslate2(folder: Path, threads: int, compute_type: str = "float32") -> Run:
    """CTranslate2, converted by its own converter; it removes padding inside and adds it again at
    the end."""
    import transformers

    ct2 = import_ctranslate2()

    _quiet(transformers)
    with tempfile.TemporaryDirectory() as work:
        ct2.converters.TransformersConverter(str(folder)).convert(f"{work}/model")
        encoder = ct2.Encoder(
            f"{work}/model", intra_threads=threads, inter_threads=1, compute_type=compute_type
        )

    def run(sequences: list[np.ndarray]) -> Any:
        return encoder.forward_batch([ids.tolist() for ids in sequences]).last_hidden_state

    return run


SYSTEMS: dict[str, Callable[[Path, int], Run]] = {
    "fusewire": fusewire,
    "transformers": transformers_eager,
    "torch-packed": torch_packed,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "ctranslate2": ctranslate2,
}


def packed(output: Any, sequences: list[np.ndarray]) -> np.ndarray:
    """Returns the real tokens as float32 [tokens, hidden], whatever form of output a system has."""
    array = np.asarray(output.numpy() if hasattr(output, "numpy") else output)
    if array.ndim == 3:
        array = np.concatenate([row[: len(ids)] for row, ids in zip(array, sequences, strict=True)])
    return np.array(array, np.float32)


def padded(sequences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    shape = (len(sequences), max(len(ids) for ids in sequences))
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return ids, mask


def _quiet(transformers: Any) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def load_bert(folder: Path, threads: int) -> tuple[Any, Any]:
    import torch
    import transformers

    _quiet(transformers)
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False)
    return torch, model.eval()


def plain_bert(torch: Any, model: Any) -> Any:
    """Returns BERT's forward pass as the optimizer's patterns expect it: with an additive mask."""
    heads = model.config.num_attention_heads

    class PlainBert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            length = input_ids.shape[1]
            scale = float(model.config.hidden_size // heads) ** 0.5
            table = self.model.embeddings
            x = table.word_embeddings(input_ids) + table.token_type_embeddings(token_type_ids)
            x = table.LayerNorm(x + table.position_embeddings(table.position_ids[:, :length]))
            mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
            for layer in self.model.encoder.layer:
                own, output = layer.attention.self, layer.attention.output
                q, k, v = (self.split(dense(x)) for dense in (own.query, own.key, own.value))
                scores = q @ k.transpose(-1, -2) / scale + mask
                mixed = (torch.softmax(scores, -1) @ v).permute(0, 2, 1, 3)
                mixed = mixed.reshape(mixed.shape[0], mixed.shape[1], x.shape[-1])
                x = output.LayerNorm(output.dense(mixed) + x)
                inner = torch.nn.functional.gelu(layer.intermediate.dense(x))
                x = layer.output.LayerNorm(layer.output.dense(inner) + x)
            return x

        def split(self, x: Any) -> Any:
            return x.view(x.shape[0], x.shape[1], heads, -1).permute(0, 2, 1, 3)

    return PlainBert().eval()


def write_bert_base(folder: Path) -> None:
    """Writes BERT-base's shape with seeded random weights as a Hugging Face folder.

    It also has what ctranslate2's converter needs: a tokenizer (any one with this vocabulary size;
    it is never used) and the configuration's field for the kind of positions, which older
    transformers wrote.
    """
    import torch
    import transformers

    _quiet(transformers)
    torch.manual_seed(0)
    config = transformers.BertConfig(position_embedding_type="absolute")
    transformers.BertModel(config).eval().save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"w{n}" for n in range(config.vocab_size - len(words))]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast(str(vocabulary)).save_pretrained(folder)


def vocabulary(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])
