"""A framework's configuration file: whose it is, what it asks for, and what of it is wrong."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from gpuscope.analyzers.planning.inputs.fields import read_values
from gpuscope.analyzers.planning.inputs.transformer import Model
from gpuscope.analyzers.planning.settings import accelerate, deepspeed, torchtitan
from gpuscope.analyzers.planning.settings.values import Setup, Values
from gpuscope.errors import InputError

_YAML = (".yaml", ".yml")


def values_of(path: Path) -> Values:
    """The settings of a TOML, JSON or YAML file. Raises `InputError` where it is none, or of no framework known."""
    found = Values(path, _yaml(path) if path.suffix in _YAML else read_values(path))
    if not _framework(found):
        raise InputError(
            f"{path} is no configuration of DeepSpeed, torchtitan or Accelerate",
            hint=f"they have {', '.join(deepspeed.MARKS)}; parallelism and training; or {accelerate.KIND}",
        )
    return found


def named_model(values: Values) -> str:
    """The model that the file names; empty where it names none."""
    return torchtitan.model_of(values) if _framework(values) == "torchtitan" else ""


def setup_of(values: Values, gpus: int, model: Model) -> Setup:
    """What the file asks for."""
    framework = _framework(values)
    if framework == "torchtitan":
        return torchtitan.read(values, gpus, model.layers, model.experts > 0)
    if framework == "accelerate":
        return accelerate.read(values, gpus)
    return deepspeed.read(values, gpus)


def _framework(values: Values) -> str:
    parts = values.parts
    if accelerate.KIND in parts:
        return "accelerate"
    if parts & {*deepspeed.MARKS}:
        return "deepspeed"
    return "torchtitan" if parts & {"parallelism", "training"} else ""


def _yaml(path: Path) -> dict[str, Any]:
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise InputError(f"{path}: reading YAML needs PyYAML", hint="pip install pyyaml, or save it as JSON") from None
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{path} is not YAML: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no named values")
    return {str(key): value for key, value in found.items()}
