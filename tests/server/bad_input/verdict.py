"""Whose answer a refusal is, ours or the server's, and whether it is one that may be given."""

from __future__ import annotations

import math
import re
import struct

from tests.server.bad_input.generator import Case
from tests.server.bad_input.message import Reply

OURS = re.compile(r"(\w+(\[\d+\])?|'.*'|\".*\"): got .+, wanted .+; .+", re.DOTALL)

# What Triton 24.10 refuses before a request reaches us, in its own words.
_TRITON = re.compile(
    r"(\[request id: .*?\] )?("
    r"expected \d+ string elements for inference input"
    r"|unexpected number of string elements \d+ for inference input"
    r"|incomplete string (data|length indicator) for inference input"
    r"|inference input '.*' data-type is '.*', but model"
    r"|inference request batch-size must be <= "
    r"|input '.*' batch size does not match other inputs"
    r"|input byte size mismatch for input"
    r"|input '.*' already exists in request"
    r"|input '.*' has no shape but model requires batch dimension"
    r"|unexpected shape for input '.*' for model"
    r"|All input dimensions should be specified for input"
    r"|out of bounds index 0: request has 0 inputs"
    r"|unexpected inference (input|output) '.*' for model"
    r"|Request for unknown model: "
    r"|failed to get model version from specified version string"
    r"|invalid model version specified"
    r"|unexpected size for input '.*', expecting \d+ additional bytes for model"
    r"|unexpected additional input data for model"
    r"|contents field must not be specified when using raw_input_contents"
    r"|unable to find data for input tensor"
    r"|unexpected explicit tensor data for input tensor"
    r"|batch size \d+ for '.*', max allowed is"
    r"|Raw request must only have 1 input"
    r"|string correlation ID cannot be longer than"
    r"|inference header size should be in range"
    r"|Input must set only one of the following fields"
    r"|failed to parse the request JSON buffer: "
    r"|invalid value for 'priority', expected value"
    r"|invalid value type for '.*' parameter, expected"
    r"|invalid value type for '[^']*$"  # of a name with a NUL, where the text ends
    r"|parameter '.*' has invalid type\. It should be"
    r"|parameter keys starting with 'triton_' are reserved"
    r"|parameter key '.*' was not found in the JSON"
    r"|[Uu]nable to parse"
    r"|Not Found$"
    r")",
    re.DOTALL,
)
# What its Python backend says to a whole execution when the last text of one of its requests is
# cut off (test_a_text_that_was_cut_off_fails_alone), or a shape overflows 64 bits.
_STRUCK = re.compile("incomplete string data for inference input|batch size \\d+ for ")
_OK = ("OK", "200")
_REFUSED = ("INVALID_ARGUMENT", "400")
_LATE = ("UNAVAILABLE", "503")  # its own time limit, of microseconds, has passed
_LEAKS = ("Traceback", ".py", "fusewire_", "/tmp", "/dev/shm", "site-packages", "At:\n")
# Longer texts do not fit into gRPC's trailers, and the client would see another error.
_LONGEST_TEXT = 1000


def judge(case: Case, reply: Reply) -> str:
    """answered, refused, refused by Triton, or struck (failed by Triton for a neighbour's fault);
    AssertionError for anything else."""
    if reply.status in _OK:
        if reply.status == "OK":
            _check_outputs(case, reply)
        return "answered"
    if case.good and _STRUCK.match(reply.text):
        return "struck"
    assert not case.good, f"a good request was refused: {reply}"
    if OURS.fullmatch(reply.text):
        late = "timeout" in case.message.parameters and reply.text.startswith("timeout")
        assert reply.status in (_LATE if late else _REFUSED), reply
        assert len(reply.text) <= _LONGEST_TEXT, reply
        assert reply.text.isprintable(), reply
        for leak in _LEAKS:
            assert leak not in reply.text, reply
        return "refused"
    if reply.status == "RESOURCE_EXHAUSTED" and "metadata size" in reply.text:
        # Triton's own texts repeat the request's id.
        assert len(case.message.id) > 8000, reply
        return "refused by Triton"
    text = reply.text.removeprefix('{"error":"')  # left when the body is no JSON, as not UTF-8
    assert _TRITON.match(text), f"neither ours nor a text of Triton's: {reply}"
    return "refused by Triton"


def _check_outputs(case: Case, reply: Reply) -> None:
    """Each row has its answer, and no number is NaN or infinite."""
    rows = {tensor.shape[0] for tensor in case.message.inputs}
    assert reply.outputs, reply
    for name, (datatype, shape, raw) in reply.outputs.items():
        assert {shape[0]} == rows, (name, shape, rows)
        if datatype == "FP32":
            assert len(raw) == 4 * math.prod(shape), (name, shape, len(raw))
            assert all(map(math.isfinite, struct.unpack(f"<{len(raw) // 4}f", raw))), name
