"""The protocol buffers of TensorFlow checkpoints, only the fields that are read.

From tensorflow/core/protobuf/tensor_bundle.proto and trackable_object_graph.proto. They are built
here, so that neither tensorflow nor generated code is needed.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "fixed32": _Field.TYPE_FIXED32,
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
}
# Message -> field -> (number, kind, whether repeated). Enums are read as int32, strings as bytes.
_MESSAGES: dict[str, dict[str, tuple[int, str, bool]]] = {
    "Header": {"num_shards": (1, "int32", False), "endianness": (2, "int32", False)},
    "Dim": {"size": (1, "int64", False)},
    "Shape": {"dim": (2, "Dim", True), "unknown_rank": (3, "bool", False)},
    "Extent": {"start": (1, "int64", False), "length": (2, "int64", False)},
    "Slice": {"extent": (1, "Extent", True)},
    "Entry": {
        "dtype": (1, "int32", False),
        "shape": (2, "Shape", False),
        "shard_id": (3, "int32", False),
        "offset": (4, "int64", False),
        "size": (5, "int64", False),
        "crc32c": (6, "fixed32", False),
        "slices": (7, "Slice", True),
    },
    "Attribute": {"full_name": (2, "bytes", False), "checkpoint_key": (3, "bytes", False)},
    "Slot": {"slot_variable_node_id": (3, "int32", False)},
    "Object": {"attributes": (2, "Attribute", True), "slot_variables": (3, "Slot", True)},
    "ObjectGraph": {"nodes": (1, "Object", True)},
}


def _classes() -> dict[str, Any]:
    package = "fusewire.tensorflow"
    # proto2, to distinguish a field with the value 0 from an absent one (a slice's length).
    file = descriptor_pb2.FileDescriptorProto(
        name="fusewire/tensorflow.proto", package=package, syntax="proto2"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            message.field.add(
                name=field,
                number=number,
                label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
                type=_KINDS.get(kind, _Field.TYPE_MESSAGE),
                type_name=None if kind in _KINDS else f".{package}.{kind}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in _MESSAGES
    }


_MADE = _classes()
Header = _MADE["Header"]
Entry = _MADE["Entry"]
ObjectGraph = _MADE["ObjectGraph"]
