"""Tiny decoders with channels as large models have them: a few are many times larger than the
others, of all tokens, and the matrices that read them have small weights there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from fusewire.models import blueprint_of, read_config
from fusewire.models.stored_weights import Norm
from fusewire.smoothing.channels import channels_of
from safetensors.numpy import load_file, save_file

from tests.models.tiny_decoders import tiny_decoder

LARGER, SMALLER = 50, 10
CHANNELS = [3, 17, 40]


def outlier_decoder(folder: Path, model_type: str, shard: str = "5GB", **sizes: object) -> None:
    tiny_decoder(folder, model_type, shard=shard, **sizes)
    blueprint = blueprint_of(read_config(folder), "generate")
    norms: dict[str, Norm] = {}
    rows: set[str] = set()
    columns: set[str] = set()
    for channels in channels_of(blueprint):
        if isinstance(channels.source, Norm):
            norms |= {name: channels.source for name in channels.source.tensors()}
            for reader in channels.readers:
                names = {f"{name}.weight" for name in reader.names}
                (rows if reader.transposed else columns).update(names)
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for stored, tensor in tensors.items():
            name = stored.removeprefix(f"{blueprint.prefix}.")
            if name in norms:
                plus = np.float32(norms[name].one_plus)
                tensor[CHANNELS] = (tensor[CHANNELS] + plus) * LARGER - plus
            elif name in rows:
                tensor[CHANNELS] /= SMALLER
            elif name in columns:
                tensor[:, CHANNELS] /= SMALLER
        save_file(tensors, path, {"format": "pt"})
