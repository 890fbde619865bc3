"""Reads the files that sentence-transformers writes beside a model. They define how its vectors are
computed.

modules.json lists the steps after the encoder. Supported are Pooling (one mode), then Dense, then
Normalize, Dropout (without effect at inference), a length limit, lower-casing and prompts. Any
other step would change the embedding, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError, InvalidInput, sent
from fusewire.models.stored_weights import Dense
from fusewire.models.task_heads import EmbeddingOptions
from fusewire.tasks.sentence_dense import read_dense, weight_file
from fusewire.weights import read_json, read_json_list

MODULES = "modules.json"
# The first of these files is read. Older versions of sentence-transformers named it by the encoder.
_ENCODERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_SETTINGS = tuple(f"sentence_{each}_config.json" for each in _ENCODERS)
MODEL = "config_sentence_transformers.json"

_STEPS = ("Pooling", "Dense", "Normalize")  # in this order
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

# sentence-transformers' names -> ours. Older files have a flag per mode.
POOLING_MODES = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


@dataclass(frozen=True)
class SentenceFiles:
    """The content of the files. The defaults apply to a folder without them."""

    pooling: str = "mean"
    normalize: bool = False
    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)  # name -> prefix of a text
    default_prompt_name: str | None = None
    pools_prompts: bool = True
    similarity: str = SIMILARITIES[0]
    dense: tuple[Dense, ...] = ()  # between pooling and scaling
    truncate_dim: int | None = None  # number of leading elements of a scaled vector that are kept

    @staticmethod
    def read(folder: Path) -> SentenceFiles:
        """Reads the files of a folder. Raises CheckpointError where they ask for something that is
        not supported."""
        modules = _modules(folder)
        if modules is None:
            return SentenceFiles()
        steps = [(_kind(module), str(module.get("path", ""))) for module in modules]
        if steps[0] != ("Transformer", ""):
            raise _unsupported(
                f"the first module {steps[0][0]} at {steps[0][1]!r}",
                'Transformer at "" (the encoder at the top of the folder)',
            )
        pooling, normalize, include_prompt = "mean", False, True
        dense: list[Dense] = []
        kinds = [kind for kind, _ in steps[1:] if kind != "Dropout"]
        for kind in kinds:
            if kind not in _STEPS:
                raise _unsupported(f"the module {kind}", "Pooling, Dense and Normalize")
        if "Pooling" not in kinds:
            raise _unsupported("no Pooling module", "one after the Transformer")
        if kinds != sorted(kinds, key=_STEPS.index):
            raise _unsupported(f"the modules {', '.join(kinds)}", f"the order {', '.join(_STEPS)}")
        for kind, path in steps[1:]:
            if kind == "Pooling":
                pooling, include_prompt = _pooling(folder, f"{path}/config.json")
            elif kind == "Dense":
                dense.append(read_dense(folder, path))
            elif kind == "Normalize":
                normalize = True
        found = ((name, read_json(folder, name)) for name in _SETTINGS)
        file, settings = next(((name, values) for name, values in found if values), ("", {}))
        prompts, default = prompts_of(folder)
        if any(prompts.values()) and not include_prompt:
            raise _unsupported(
                "prompts that pooling leaves out (include_prompt false)", "pooling over them"
            )
        return SentenceFiles(
            pooling,
            normalize,
            _whole(file, "max_seq_length", settings.get("max_seq_length")),
            settings.get("do_lower_case") is True,
            prompts,
            default,
            include_prompt,
            _similarity(folder),
            tuple(dense),
            _whole(MODEL, "truncate_dim", (read_json(folder, MODEL) or {}).get("truncate_dim")),
        )

    def options(
        self, pooling: str | None = None, normalize: bool | None = None
    ) -> EmbeddingOptions:
        """Returns how vectors are computed. None: as the folder says."""
        return EmbeddingOptions(
            pooling or self.pooling,
            self.normalize if normalize is None else normalize,
            self.truncate_dim,
            rescale=normalize is True,
        )

    def embedding_size(self, hidden_size: int) -> int:
        """Returns the number of elements of an embedding by a model of this hidden size. Raises
        CheckpointError where the Dense modules do not fit it, or each other."""
        size = hidden_size
        for dense in self.dense:
            if dense.inputs != size:
                raise CheckpointError(
                    f"{weight_file(dense)}: in_features: got {dense.inputs}, wanted {size}, what "
                    "comes before it; is it another model's?"
                )
            size = dense.outputs
        return size if self.truncate_dim is None else min(size, self.truncate_dim)

    def prompt(self, name: str | None) -> str:
        """Returns the prefix of a text: the prompt of that name, otherwise the folder's default,
        otherwise "". Raises InvalidInput for a name that the folder does not have."""
        if name is None:
            name = self.default_prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none, as the model folder has no prompts"
            raise InvalidInput("prompt_name", sent(name), f"one of {known}", "correct it")
        return self.prompts[name]


def _modules(folder: Path) -> list[dict[str, Any]] | None:
    """Returns the content of modules.json, which is a list, unlike all other files."""
    modules = read_json_list(folder, MODULES)
    if modules is not None and not (modules and all(isinstance(m, dict) for m in modules)):
        raise CheckpointError(f"{MODULES}: wanted a list of modules; download the file again")
    return modules


def _kind(module: dict[str, Any]) -> str:
    """Returns the name of a class of sentence-transformers, or the full name of another, which is
    code of the model's own."""
    name = str(module.get("type", ""))
    return name.rsplit(".", 1)[-1] if name.startswith("sentence_transformers.") else name


def _pooling(folder: Path, name: str) -> tuple[str, bool]:
    config = read_json(folder, name)
    if config is None:
        raise CheckpointError(f"{name}: missing, yet {MODULES} names it; download it too")
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _FLAGS.items() if config.get(flag) is True] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise CheckpointError(
            f"{name}: pooling: got {modes!r}, wanted one of {', '.join(POOLING_MODES)}; "
            "set the pooling of this deployment yourself and remove the file"
        )
    return POOLING_MODES[modes[0]], config.get("include_prompt", True) is not False


def prompts_of(folder: Path) -> tuple[dict[str, str], str | None]:
    """Returns (prompts by name, the name of the default prompt)."""
    config = read_json(folder, MODEL) or {}
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise CheckpointError(
            f"{MODEL}: prompts: got {repr(prompts)[:80]}, wanted texts by name; correct the file"
        )
    if default is not None and default not in prompts:
        raise CheckpointError(
            f"{MODEL}: default_prompt_name: got {default!r}, wanted a name in `prompts`; "
            "correct the file"
        )
    return prompts, default


def _similarity(folder: Path) -> str:
    """Returns the similarity function. Older versions of sentence-transformers, which supported
    only one, wrote none or null."""
    name = (read_json(folder, MODEL) or {}).get("similarity_fn_name") or SIMILARITIES[0]
    if name not in SIMILARITIES:
        raise CheckpointError(
            f"{MODEL}: similarity_fn_name: got {name!r}, wanted one of "
            f"{', '.join(SIMILARITIES)}; correct the file"
        )
    return str(name)


def _whole(file: str, key: str, value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise CheckpointError(
            f"{file}: {key}: got {value!r}, wanted a whole number of at least 1; correct the file"
        )
    return value


def _unsupported(got: str, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{MODULES}: got {got}, wanted {wanted}; this sentence-transformers model is not supported "
        "(serve the task hidden, and finish the embedding at the client)"
    )
