"""docs/performance.md: text around the tables of the committed rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.pages.pictures import PICTURES
from benchmarks.pages.rows import KINDS, committed
from benchmarks.records import Rows

INTRODUCTION = """\
# Performance

<!-- Generated from docs/results by `python -m benchmarks.pages`: do not edit. -->

All systems of a table were measured in the same run on the same machine, in turns unless the text
says otherwise, so that clock changes and other load met all of them. Where outputs can be compared,
each system's was first checked against transformers on fresh random input. Numbers are medians
unless the table says otherwise. Under each table: date, hardware, versions.

In the picture, blue bars above 1 are cases where fusewire is faster than the fastest alternative of
the same run, orange bars below 1 where it is slower."""


@dataclass(frozen=True)
class Section:
    """A section of the page: its heading, an introduction, the benchmarks of its tables (kind of
    device and name), the pictures above them, and notes on systems in them."""

    heading: str
    prose: str
    benchmarks: tuple[tuple[str, str], ...]
    pictures: tuple[str, ...] = ()
    systems: dict[str, str] = field(default_factory=dict)


SECTIONS = (
    Section(
        "Encoders on GPUs",
        "Time on the device of one forward pass, from token ids to the last hidden state. "
        "`packed` is torch on unpadded rows with FlashAttention-2, the whole pass in one CUDA "
        "graph; `compiled` adds `torch.compile`. `transformers` pads each batch to its longest "
        "sequence. Lengths are drawn uniformly from 0.2 S to S, or all equal to S where the table "
        "says full.",
        (("gpu", "encoder"),),
        ("encoders_gpu",),
    ),
    Section(
        "Encoders on CPUs",
        "From token ids to the last hidden state in fp32, all systems on the same cores.",
        (("cpu", "encoder"),),
        ("encoders_cpu",),
        {
            "torch-packed": "torch on unpadded rows, attention a sequence at a time",
            "onnxruntime": "a graph fused by ONNX Runtime's own Transformer optimizer, padded",
            "openvino": "OpenVINO with its latency hint for one sequence, with its throughput hint "
            "and an unpadded request for each of several; inference precision f32, because its "
            "default is bf16 where the processor has that",
            "ctranslate2": "CTranslate2, which removes padding inside",
        },
    ),
    Section(
        "Encoding texts from Python",
        "Texts to embeddings, tokenisation included, with the pooling and normalisation of "
        "all-MiniLM-L6-v2: `fusewire.Embedder.encode` beside `SentenceTransformer.encode`, both "
        "with their defaults.",
        (("cpu", "encode"),),
    ),
    Section(
        "Lists of texts and prompts from Python",
        "What `fusewire.LLM.generate` and `fusewire.Embedder.encode` cost over the engines that "
        "they call.",
        (("gpu", "python_api"),),
    ),
    Section(
        "Images on GPUs",
        "ViT with random weights; every system's logits were checked against transformers in fp32.",
        (("gpu", "images"),),
        (),
        {
            "torch-eager": "transformers' model as it comes, with SDPA",
            "torch-compiled": '`torch.compile(mode="reduce-overhead")`: a CUDA graph, with the '
            "attention of cuDNN where it can",
        },
    ),
    Section(
        "Generation on GPUs",
        "The first table compares two whole engines: fusewire's and vLLM's, one after the other, "
        "each the only process on the GPU, the fastest of two runs. Both read whole answers as "
        "token ids, and compute as many tokens a step as their class for lists of prompts does by "
        "default, with weights of the same distribution. The other tables compare single steps, "
        "prompts, whole answers and long contexts with a hand-written torch decoder, compiled and "
        "replayed as a CUDA graph, and with transformers.",
        (("gpu", "generation_vllm"), ("gpu", "generation")),
        ("generation_vllm", "generation_step"),
    ),
    Section(
        "Requests that arrive at random",
        "The first table compares fusewire's engine with vLLM's, each with the defaults of its "
        "server, streaming each token to a client in its process. The others: continuous batching "
        "beside the same engine with batches that run to completion.",
        (
            ("gpu", "arrivals_vllm"),
            ("gpu", "generation_poisson"),
            ("cpu", "generation_poisson"),
            ("gpu", "seq2seq_poisson"),
            ("cpu", "seq2seq_poisson"),
        ),
        ("arrivals_vllm", "arrivals"),
    ),
    Section(
        "Generation on CPUs",
        "GPT-2 in fp32 on the same cores; every system produces the same greedy tokens.",
        (("cpu", "generation"),),
        ("generation_cpu",),
    ),
    Section(
        "Translation with beams",
        "Encoder-decoder models of random weights as Marian folders, whose texts never end by "
        "themselves. On the CPU every system in fp32 gives the same tokens. On a GPU a "
        "step is begun before the one before it is read, so that the host's work is hidden behind "
        "the device's; tokens/s of the whole have the host's work for new requests too. Steps of "
        "models this small are many short kernels, far from the floor of bytes and products. "
        "torch's device: a step that is written in torch, compiled and replayed as a CUDA graph. "
        "LightSeq's authors publish, of a Transformer in fp16 on an A100, 6.5, 8.2 and 9.7 times "
        "PyTorch with 1, 8 and 32 sources of 32 tokens. The GPU's rows are of three runs; those of "
        "BART-large are older than the kernel for many beams of long sources. "
        "On the CPU other benchmarks had cores of their own on the same machine meanwhile.",
        (("gpu", "seq2seq_gpu"), ("cpu", "seq2seq")),
        (),
        {
            "ctranslate2": "fp32, on MKL",
            "ctranslate2-int8": "the same with int8 weights, whose tokens differ",
        },
    ),
    Section(
        "Weights in fewer bits",
        "On a CPU the same weights in bfloat16 and int8, computed in float32, and products with "
        "weights that a folder has in 4 bits; on a GPU weights in 8 and 4 bits beside 16 bits. "
        "[Quantisation](quantization.md) says what it costs.",
        (
            ("cpu", "weight_formats"),
            ("cpu", "products_4_bits"),
            ("gpu", "weight_formats_gpu"),
            ("cpu", "weight_memory"),
            ("gpu", "weight_memory_gpu"),
        ),
        (),
        {
            "torch _scaled_mm, rows given": "cuBLASLt on rows that are already in e4m3, with "
            "scales by row",
            "torch compiled": "the same, for rows that a compiled kernel quantises",
            "torch _int_mm, sums": "cuBLASLt on rows that are already in int8, without scales",
            "onnxruntime int4": "MatMulNBits of ONNX Runtime, accuracy level 1",
            "onnxruntime w4a8": "the same, accuracy level 4",
            "torch int4": "`_weight_int4pack_mm_for_cpu`, x in bfloat16",
        },
    ),
    Section(
        "Through the server",
        "What is left of the engine's throughput when requests come over gRPC, or over HTTP to the "
        "OpenAI endpoint. Triton's Python backend takes one request at a time, and of streams that "
        "begin together the last is taken late: with 64 streams of GPT-2, whose answers take 0.1 s "
        "in all, this is most of what is lost.",
        (
            ("gpu", "served"),
            ("gpu", "served_images"),
            ("gpu", "generation_served"),
            ("cpu", "served"),
        ),
    ),
    Section(
        "Overload",
        "What is still answered in time when more requests come than can be answered. The server "
        "has cores of its own and the clients others; clients send when a request is due, never "
        "wait for an earlier answer, and what came late counts as not answered.\n\n"
        "Texts of 48 words; `lengths` of 5 to 500 tokens; `bursts`, which come in every other two "
        "seconds; `tenants`, of which one sends ten times what each of four others does; "
        "`retries`, of clients that try again until their deadline, first within 0.1 s, then "
        "within twice as long each time; `answers`, which a small GPT generates, of mixed "
        "lengths. At 3 x `bursts` are six times, and `retries` with all their attempts about ten "
        "times what can be answered: to read and refuse so much takes time of the core that "
        "answers, of which `possible` knows nothing. Loads were measured one after the other, "
        "each between two measurements of the closed loop: where others use the machine, its "
        "speed changes in between, and shares with it, which may be above 100%.",
        (("cpu", "overload"),),
        (),
        {
            "fusewire": "admission by predicted cost; clients name their deadline",
            "fifo": "the same server with admission off",
            "triton": "the same, and Triton's own queue policy, which rejects what is beyond a "
            "number of requests or has waited for the deadline: of little effect here, as the "
            "backend takes requests out of that queue at once (not in these runs)",
            "count": "the same, and clients that refuse what is beyond a number under way, as a "
            "gateway does: it takes no time of the server's",
        },
    ),
    Section(
        "Faults and long runs",
        "Whether a service heals as promised, on a machine that others may use meanwhile: what is "
        "judged is the bounds, not the speed.",
        (("cpu", "chaos"), ("cpu", "soak")),
    ),
    Section(
        "Batches of requests of many lengths",
        "TurboTransformers' experiment: which requests should share a batch when batches are "
        "padded, and what is left of the question when they are packed. Queue and clock are the "
        "same program for all, without a server. `dynamic program` is their scheduler on the "
        "measured cost of the padded system's batches, `in order` takes those that came first, "
        "`alone` is no batching.",
        (("cpu", "turbo"), ("gpu", "turbo")),
    ),
    Section(
        "Training",
        "Steps of fine-tuning, beside transformers' own layers on torch, eager and compiled, "
        "which pad a batch to its longest text. On a GPU compiled ones get batches of one "
        "shape: texts padded to the longest of all, and of a translator's batches one again and "
        "again. "
        "[Training](training.md) says how. LightSeq2's "
        "authors publish, in fp16 on an A100, 1.99, 1.47 and 1.44 times PyTorch for a Transformer "
        "with 512, 4096 and 15000 tokens a batch, and 2.12, 1.59, 1.74 and 1.68 for BERT with 8, "
        "32, 128 and 256 texts.",
        (("cpu", "training"), ("gpu", "training_gpu"), ("gpu", "training_ddp")),
    ),
    Section(
        "Memory",
        "",
        (
            ("gpu", "memory"),
            ("gpu", "training_gpu_memory"),
            ("cpu", "memory"),
            ("cpu", "training_memory"),
        ),
    ),
    Section(
        "Single kernels",
        "",
        (
            ("gpu", "kernels"),
            ("gpu", "gemm"),
            ("gpu", "attention"),
            ("gpu", "attention_training"),
            ("cpu", "gemm"),
        ),
        ("attention",),
    ),
)

REPEATING = """\
## Repeating the measurements

`make bench` installs the alternatives and runs the benchmarks of the CPU; `python -m benchmarks
encoder` runs one of them. With a GPU:

| table | command |
|---|---|
| encoders, lengths 0.2 S to S | `python -m benchmarks.gpu encoder --grids grid --compile-all` |
| encoders, LightSeq's and EET's grids | `python -m benchmarks.gpu encoder --grids lightseq eet` |
| row kernels, matrix products, attention | `python -m benchmarks.gpu kernels gemm attention` |
| device memory; served by Triton | `python -m benchmarks.gpu memory served` |
| generation: step, prompts, whole answers, contexts | `python -m benchmarks.gpu generation` |
| translation with beams beside transformers | `python -m benchmarks.gpu seq2seq` |
| lists of texts and prompts from Python | `python -m benchmarks.python_api --device cuda` |
| image classifiers, ViT-B/16 and L/14 | `python -m benchmarks.images`, `--device cuda` |
| images served by Triton | `python -m benchmarks.served_images --device cuda` |
| translation with beams | `python -m benchmarks.seq2seq`, `python -m benchmarks.gpu seq2seq` |
| steps of training | `python -m benchmarks.training`, `--device cuda` |
| attention forwards and backwards in training | `python -m benchmarks.gpu attention_training` |
| steps of training by several GPUs | `python -m benchmarks.training_ddp` |
| weights in fewer bits, beside others' | `python -m benchmarks.weight_formats`, `--device cuda` |
| products with weights of 4 bits | `python -m benchmarks.products_4_bits` |
| memory by the format of weights | `python -m benchmarks.weight_memory`, `--device cuda` |
| generation beside vLLM | `python -m benchmarks.gpu.generation_vllm --vllm-python PATH` |
| random arrivals beside vLLM | `python -m benchmarks.gpu.arrivals_vllm --vllm-python PATH` |
| generation served by Triton | `python -m benchmarks.generation_served --device cuda` |
| requests that arrive at random | `python -m benchmarks.generation_poisson --device cuda \
--model llama-8b --seconds 5 --shares 0.1 0.2 0.3 0.5 0.7 0.9 --sequences 32` |
| texts to translate that arrive at random | `python -m benchmarks.seq2seq_poisson`, \
`--device cuda --texts 128` |
| batches of requests of many lengths | `python -m benchmarks.turbo`, `--device cuda` |
| memory of a training step | `python -m benchmarks.training_memory`, `--device cuda` |
| faults; memory over 200,000 requests | `python -m tests.chaos`, `python -m tests.chaos.soak` |

Overload needs cores for the server and others for its clients: `python -m benchmarks.overload \
--server-cores 0,1 --driver-cores 2-7`, with `--loads`, `--systems`, `--shares` and `--minutes` for
a part of it.

`generation_served` and `generation_poisson` take `--model gpt2` or `llama-8b`. Every benchmark has
`--help`.

Rows go to `bench-results`. `python -m benchmarks.pages --take` brings them into `docs/results` and
renews this page and its pictures.

`make load` starts a server and puts load on it with Locust: texts to embed, and streams of
generated text over gRPC and from the OpenAI endpoint, in a closed loop and with Poisson arrivals.
It reports latencies, times to first token and times between tokens in `load-results`."""


def page(results: Path) -> str:
    """Returns the page as Markdown; sections without rows are left out."""
    found = committed(results)
    sections = [part for section in SECTIONS for part in _parts(section, found)]
    return "\n\n".join([INTRODUCTION, _image("results"), *sections, REPEATING]) + "\n"


def _parts(section: Section, found: dict[str, dict[str, Rows]]) -> Iterator[str]:
    measured = {
        (kind, name): found[kind][name] for kind, name in section.benchmarks if name in found[kind]
    }
    if not measured:
        return
    yield f"## {section.heading}"
    if section.prose:
        yield section.prose
    systems = {row["system"] for rows in measured.values() for row in rows if "system" in row}
    if notes := [f"- `{name}`: {n}" for name, n in section.systems.items() if name in systems]:
        yield "\n".join(notes)
    for name in section.pictures:
        yield _image(name)
    for (kind, name), rows in measured.items():
        yield KINDS[kind][name](rows)


def _image(name: str) -> str:
    return f"![{PICTURES[name].title}](images/{name}.svg)"
