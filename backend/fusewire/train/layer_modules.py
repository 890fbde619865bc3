"""The modules of transformers that kernels replace, and whether they still say what kernels do."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NoReturn

from torch.nn import Dropout, Module

from fusewire.errors import Unsupported
from fusewire.train.fsdp import refuse_fsdp

# Torch's tables of the hooks that run when a module is called.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Its hooks do nothing unless hidden states or attention weights are requested, which is refused.
_CAPTURING = "transformers.utils.output_capturing"
# Attributes of modules that pass dropout probabilities to functions.
_PROBABILITIES = ("attention_dropout", "dropout", "activation_dropout")
_INSTEAD = "leave the layers as config.json has them, or train them with transformers itself"


class LayerModules:
    """The modules of `base` that hold the parameters `names` and whose forward is not called.

    `probabilities`: the dropout probabilities that the layers may have. Raises Unsupported where
    the parameters, dropouts or hooks of the modules are not what kernels do.
    """

    def __init__(
        self, base: Module, names: Collection[str], probabilities: Collection[float]
    ) -> None:
        self._base = base
        self._roots: list[tuple[str, Module]] = []
        for root in dict.fromkeys(name.partition(".")[0] for name in names):
            module = base._modules.get(root)
            if module is None:
                self._refuse(root, "no such module", "one")
            self._roots.append((root, module))
        self._refuse_other_parameters(set(names))
        every = [module for _, root in self._roots for module in root.modules()]
        for module in every:
            if not type(module).__module__.startswith(("torch.", "transformers.")):
                self._refuse(self._name(module), f"a {type(module).__name__}", "transformers' own")
        self._modules = [(each, type(each), list(each._modules.values())) for each in every]
        self._drops: list[tuple[Module, str, float]] = []
        for module in every:
            table = module.__dict__
            for name in ("p",) if isinstance(module, Dropout) else _PROBABILITIES:
                if not isinstance(table.get(name), float | int):
                    continue
                self._drops.append((module, name, float(table[name])))
                if float(table[name]) not in probabilities:
                    self._refuse(self._name(module), f"dropout {table[name]}", "config's")
        self.check()

    def __iter__(self) -> Iterator[Module]:
        return (module for module, _, _ in self._modules)

    @property
    def training(self) -> bool:
        """Whether dropout is on in the layers. `train()` and `eval()` of the whole model or of all
        layers count; layers that differ are refused."""
        states = {module.training for module, _, probability in self._drops if probability}
        if len(states) > 1:
            self._refuse("layers", "some in train() and some in eval()", "one of them for all")
        return states == {True}

    def check(self) -> None:
        """Called at the start of each forward; takes microseconds."""
        for name, root in self._roots:
            if self._base._modules.get(name) is not root:
                self._refuse(name, "another module", "that of `replace`")
        for module, kind, children in self._modules:
            table = module.__dict__
            refuse_fsdp(module)
            if type(module) is not kind:
                self._refuse(self._name(module), f"a {type(module).__name__}", "that of `replace`")
            if list(table["_modules"].values()) != children:
                self._refuse(self._name(module), "other modules in it", "those of `replace`")
            if (
                table["_forward_hooks"]
                or table["_forward_pre_hooks"]
                or table["_backward_hooks"]
                or table["_backward_pre_hooks"]
                or "forward" in table
            ):
                self._refuse_hooks(module)
        for module, name, probability in self._drops:
            if (now := module.__dict__[name]) != probability:
                self._refuse(f"dropout ({name})", str(now), f"{probability} as at `replace`")

    def _refuse_hooks(self, module: Module) -> None:
        if "forward" in module.__dict__:
            self._refuse(self._name(module), "a forward of its own", "its class's")
        hooks = [hook for kind in _HOOKS for hook in getattr(module, kind).values()]
        if any(getattr(hook, "__module__", None) != _CAPTURING for hook in hooks):
            self._refuse(self._name(module), "a hook", "none, for kernels call none")

    def _refuse_other_parameters(self, names: set[str]) -> None:
        there = set()
        owners: dict[int, str] = {}
        for root_name, root in self._roots:
            for suffix, parameter in root.named_parameters(remove_duplicate=False):
                name = f"{root_name}.{suffix}"
                there.add(name)
                if (owner := owners.setdefault(id(parameter), name)) != name:
                    self._refuse(name, f"the parameter of {owner}", "one of its own")
        for name in sorted(there ^ names):
            got, wanted = ("a parameter", "none") if name in there else ("none", "a parameter")
            self._refuse(name, got, f"{wanted}, by the model's config")

    def _name(self, module: Module) -> str:
        return next((n for n, other in self._base.named_modules() if other is module), "a module")

    def _refuse(self, what: str, got: str, wanted: str) -> NoReturn:
        raise Unsupported(f"{type(self._base).__name__}.{what}", got, wanted, _INSTEAD)
