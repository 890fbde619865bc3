"""Requests that are wrong in one or several ways, and some that are not, from a seed."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from tests.reference import SENTENCES
from tests.server.bad_input.message import NOT_UTF8, Message, ids, texts

MODELS = ("embed", "hidden", "classify", "tag", "answer", "fill")
MAX_BATCH = 16
MAX_LENGTH = 64
PAIRS = ("hidden", "classify", "answer")
MASK_TOKEN, MASK_ID = "[MASK]", 4
VOCABULARY = 190  # every model here has some words more

_EDGES = (
    -(2**63), -(2**31), -1, 0, 1, 4, 319, 320, 326, 327, 400, 401, 402, 403, 404, 405, 406, 407,
    408, 410, 412, 2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1,
)  # fmt: skip
_BYTES = (
    b"", b" ", b"\0", b"a\0b", b"\xff", b"caf\xe9", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    b"\xc0\xaf", b"\x1b[31m\r\n\t\x07", "\u202e\u200d\ufeff\U0010ffff".encode(), b"[MASK]" * 70,
    b"[CLS][SEP][PAD]", b"../../etc/passwd", b"a" * 5000, "\u0301".encode() * 300, b"word " * 3000,
    "".join(map(chr, range(1, 0x250))).encode(), b"%s%n{0}${x}", b"'\"\\",
)  # fmt: skip
_NAMES = (
    "", "text_input", "text_pair", "input_ids", "attention_mask", "token_type_ids", "embedding",
    "scores", "nothing", "input_ids ", "INPUT_IDS", "a\0b", "../x", "x" * 3000, "\n", "é", NOT_UTF8,
)  # fmt: skip
_PARAMETERS = (
    "truncate", "max_length", "pooling", "normalize", "function_to_apply", "top_k", "doc_stride",
    "aggregation_strategy", "max_answer_len", "handle_impossible_answer", "max_batch_tokens",
    "threads", "task", "priority", "timeout", "sequence_id", "sequence_start", "triton_x",
    "binary_data_output", "__class__",
)  # fmt: skip
_VALUES = (
    True, False, 0, 1, -1, 3, 64, 65, 1001, 2**31, 2**63 - 1, -(2**63), 0.0, 1.5, float("nan"),
    float("inf"), 1e308, "", "true", "false", "True", "5", "-5", "0005", "1e3", "mean", "cls",
    "max", "last", "none", "softmax", "sigmoid", "simple", "average", "first", "null", "[1]", "{}",
    "\u0665", "x" * 30000, "a\0b", "\n\x1b", "\U0001f600", NOT_UTF8, None,
)  # fmt: skip
_DATATYPES = (
    "BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "UINT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES", "", "int64", "INT65", NOT_UTF8,
)  # fmt: skip
_SHAPES = (
    (), (0,), (1,), (4,), (0, 1), (1, 0), (0, 0), (1, 1), (1, 2), (2, 1), (1, 4), (1, 1, 1),
    (1, 2, 2), (-1, 4), (1, -1), (16, 1), (17, 1), (1, 2**31), (1, 2**40), (2**31, 2**31),
    (1,) * 40,
)  # fmt: skip
_VERSIONS = ("1", "2", "0", "-1", "01", "1.0", "x", "9" * 30, " 1", "../1", "18446744073709551617")


@dataclass
class Case:
    """A message, how many rows a right answer has, and whether it must be answered with OK."""

    message: Message
    rows: int
    good: bool


def generate(seed: int, index: int) -> Case:
    """The same request for the same seed and index."""
    rng = random.Random(f"{seed}-{index}")
    case = _good(rng)
    changes = 0 if rng.random() < 0.2 else rng.choice((1, 1, 1, 2, 3))
    for _ in range(changes):
        rng.choices(*_CHANGES)[0](rng, case.message)
        case.good = False
    for tensor in case.message.inputs:
        if tensor.shape[:1] == (0,):
            # With the data of one row the server takes it for a batch of nothing, and its batcher
            # keeps it for ever: test_a_batch_of_nothing_holds_up_no_other.
            tensor.raw += b"\0"
            case.message.contents = "raw"
    return case


def _good(rng: random.Random) -> Case:
    model = rng.choice(MODELS)
    rows = rng.choice((1, 1, 1, 2, 3, MAX_BATCH))
    parameters = dict(rng.choice(_GOOD_PARAMETERS[model])) if rng.random() < 0.3 else {}
    message = Message(model, parameters=parameters, id=rng.choice(("", "", "7", "a/b", "ü" * 50)))
    if rng.random() < 0.5:
        mark = f"{MASK_TOKEN} " if model == "fill" else ""
        message.inputs = [texts(*(mark + _text(rng) for _ in range(rows)))]
        if model == "answer" or (model in PAIRS and rng.random() < 0.5):
            message.inputs.append(texts(*(_text(rng) for _ in range(rows)), name="text_pair"))
        return Case(message, rows, True)
    length = rng.choice((1, 2, 3, 5, 17, 31, MAX_LENGTH))
    if model == "answer":
        length = max(length, 4)
    values = [[rng.randrange(5, VOCABULARY) for _ in range(length)] for _ in range(rows)]
    for row in values:
        if model == "fill":
            row[0] = MASK_ID
        elif model == "answer":
            row[1] = 3  # the separator, with a context after it
    message.inputs = [ids(*values)]
    if rng.random() < 0.5:
        kept = min(length, rng.choice((4, length)))
        mask = [[1] * kept + [0] * (length - kept) for _ in range(rows)]
        message.inputs.append(ids(*mask, name="attention_mask"))
    if rng.random() < 0.3:
        message.inputs.append(ids(*[[0] * length] * rows, name="token_type_ids"))
    return Case(message, rows, True)


_GOOD_PARAMETERS: dict[str, tuple[dict[str, object], ...]] = {
    "embed": ({"pooling": "cls"}, {"normalize": True, "pooling": "max"}, {"truncate": "true"}),
    "hidden": ({"truncate": True}, {"max_length": 64}),
    "classify": ({"function_to_apply": "none"}, {"function_to_apply": "sigmoid"}),
    "tag": ({"aggregation_strategy": "average"}, {"aggregation_strategy": "simple"}),
    "answer": ({"top_k": 4}, {"max_answer_len": 3}, {"handle_impossible_answer": True}),
    "fill": ({"top_k": 1}, {"top_k": "7"}),
}


def _text(rng: random.Random) -> str:
    """Short enough, alone and as one of a pair, for 64 tokens."""
    return " ".join(rng.choice(SENTENCES).split()[: rng.randint(1, 5)])


def _any_text(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(_BYTES)
    if kind < 0.9:
        return rng.randbytes(rng.choice((1, 3, 40)))
    if kind < 0.995:
        return "".join(chr(rng.randrange(1, 0xD800)) for _ in range(rng.randrange(200))).encode()
    return b"long words, and many of them. " * 10_000


def _change_value(rng: random.Random, message: Message) -> None:
    """One number or text of an input."""
    if not message.inputs:
        return
    tensor = rng.choice(message.inputs)
    if tensor.datatype == "BYTES":
        rows = max(1, tensor.shape[0] if tensor.shape else 1)
        changed = [_any_text(rng) for _ in range(min(rows, MAX_BATCH + 1))]
        tensor.raw = texts(*changed).raw
    elif len(tensor.raw) >= 8:
        place = rng.randrange(len(tensor.raw) // 8) * 8
        value = struct.pack("<q", rng.choice(_EDGES))
        tensor.raw = tensor.raw[:place] + value + tensor.raw[place + 8 :]


def _change_mask(rng: random.Random, message: Message) -> None:
    """A mask or token types of chance, of the right shape or not."""
    rows, length = _shape_of_ids(message)
    if rng.random() < 0.2:
        length = rng.choice((0, 1, length + 1, 2 * length))
    values = rng.choice(((0,), (0, 1), (0, 1), (1,), (0, 1, 2), (-1, 1), _EDGES))
    name = rng.choice(("attention_mask", "token_type_ids"))
    message.inputs = [tensor for tensor in message.inputs if tensor.name != name]
    table = [[rng.choice(values) for _ in range(length)] for _ in range(rows)]
    message.inputs.append(ids(*table, name=name))


def _change_length(rng: random.Random, message: Message) -> None:
    """Ids of other lengths, too many for the model or for the batch included."""
    length = rng.choice((0, 1, MAX_LENGTH, MAX_LENGTH + 1, 500, 5000))
    rows = rng.choice((1, 1, 2, MAX_BATCH, MAX_BATCH + 1))
    value = rng.choice((MASK_ID, 3, 9, 9))
    message.inputs = [ids(*[[value] * length] * rows)]


def _change_shape(rng: random.Random, message: Message) -> None:
    """What the request says of the shape, with the data of another or of that one."""
    if not message.inputs:
        return
    tensor = rng.choice(message.inputs)
    tensor.shape = rng.choice(_SHAPES)
    elements = 1
    for size in tensor.shape:
        elements *= size
    if 0 <= elements <= 100 and rng.random() < 0.7:
        one = struct.pack("<I", 1) + b"a" if tensor.datatype == "BYTES" else struct.pack("<q", 9)
        tensor.raw = one * elements


def _change_datatype(rng: random.Random, message: Message) -> None:
    if message.inputs:
        rng.choice(message.inputs).datatype = rng.choice(_DATATYPES)


def _change_raw(rng: random.Random, message: Message) -> None:
    """Data that was cut, that goes on, or whose lengths lie."""
    if not message.inputs:
        return
    tensor = rng.choice(message.inputs)
    kind = rng.randrange(4)
    if kind == 0:
        tensor.raw = tensor.raw[: rng.randrange(len(tensor.raw) + 1)]
    elif kind == 1:
        tensor.raw += rng.randbytes(rng.choice((1, 4, 8, 100)))
    elif kind == 2:
        tensor.raw = struct.pack("<I", rng.choice((0, 2**16, 2**31, 2**32 - 1))) + tensor.raw[4:]
    else:
        tensor.raw = rng.randbytes(len(tensor.raw))


def _change_inputs(rng: random.Random, message: Message) -> None:
    """Inputs left out, doubled, renamed, added."""
    kind = rng.randrange(4)
    if message.inputs and kind == 0:
        message.inputs.pop(rng.randrange(len(message.inputs)))
    elif message.inputs and kind == 1:
        rng.choice(message.inputs).name = rng.choice(_NAMES)
    elif kind == 2:
        message.inputs.append(texts("a", name=rng.choice(_NAMES)))
    else:
        message.inputs.append(ids([5, 6], name=rng.choice(_NAMES)))


def _change_parameters(rng: random.Random, message: Message) -> None:
    name = rng.choice(_PARAMETERS + _NAMES) if rng.random() < 0.9 else _any_name(rng)
    message.parameters[name] = rng.choice(_VALUES)


def _change_outputs(rng: random.Random, message: Message) -> None:
    message.outputs += rng.choices(_NAMES, k=rng.choice((1, 2, 20)))


def _change_address(rng: random.Random, message: Message) -> None:
    """Model, version, request id."""
    kind = rng.randrange(3)
    if kind == 0:
        message.version = rng.choice(_VERSIONS)
    elif kind == 1:
        message.model = rng.choice((*MODELS, "", "nothing", "../embed", "EMBED", "e" * 3000))
    else:
        message.id = rng.choice((NOT_UTF8, "\0", "a\nb", "x" * 100_000, "<id_unknown>"))


def _change_contents(rng: random.Random, message: Message) -> None:
    """Data in other fields of the gRPC message; some of these requests are right all the same."""
    message.contents = rng.choice(("typed", "both", "fewer"))


def _any_name(rng: random.Random) -> str:
    return "".join(chr(rng.randrange(1, 0xD800)) for _ in range(rng.choice((1, 5, 100))))


def _shape_of_ids(message: Message) -> tuple[int, int]:
    for tensor in message.inputs:
        if tensor.name == "input_ids" and len(tensor.shape) == 2:
            return max(1, min(tensor.shape[0], 20)), max(1, min(tensor.shape[1], 200))
    return 1, 4


_CHANGES = (
    (
        _change_value, _change_mask, _change_length, _change_shape, _change_datatype, _change_raw,
        _change_inputs, _change_parameters, _change_outputs, _change_address, _change_contents,
    ),
    (30, 14, 8, 10, 5, 8, 8, 20, 4, 4, 4),
)  # fmt: skip
