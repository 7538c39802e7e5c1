"""Classes of protobuf messages, made from short lists of their fields.

A field that is not listed is skipped when a message is parsed. Generated code would tie gpuscope to one range of
protobuf's versions (docs/decisions/2026-11-22-pftrace-by-protobuf.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def message_classes(package: str, messages: Mapping[str, str]) -> dict[str, Any]:
    """The classes by name; fields are `name:number:type`, types with `*` repeated ones, those of `messages` by name."""
    proto = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, fields in messages.items():
        message = proto.message_type.add(name=name)
        for entry in fields.split():
            field, number, kind = entry.split(":")
            _declare(message, field, int(number), kind, package if kind.removesuffix("*") in messages else None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    found = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in messages}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


def _declare(message: Any, name: str, number: int, kind: str, package: str | None) -> None:
    field = descriptor_pb2.FieldDescriptorProto
    plain = kind.removesuffix("*")
    label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
    declared = message.field.add(name=name, number=number, label=label)
    if package is not None:
        declared.type, declared.type_name = field.TYPE_MESSAGE, f".{package}.{plain}"
    else:
        declared.type = getattr(field, f"TYPE_{plain.upper()}")
