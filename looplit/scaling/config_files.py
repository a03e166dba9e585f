"""Config files as plain values: read, merged, and overridden as `python -m looplit fit` does. No Lightning needed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from looplit.errors import InputError

SECTIONS = ("seed_everything", "model", "data", "trainer", "ckpt_path", "optimizer", "lr_scheduler")
SUBCLASS_SECTIONS = ("model", "data")


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 3e-4 and 1e9 are numbers, as jsonargparse reads them."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?((\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.(inf|Inf|INF))$"),
    list("-+0123456789."),
)


def parse_value(text: str) -> Any:
    """The value that `text` stands for in YAML.

    >>> parse_value("3e-4"), parse_value("[1, 2]"), parse_value("FineWeb")
    (0.0003, [1, 2], 'FineWeb')
    """
    return yaml.load(text, Loader=_Loader)


def read_configs(paths: Iterable[str | Path], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The configs in order, later ones over earlier ones, then `--key value` or `--key=value` overrides.

    Mappings merge, everything else (lists of callbacks, say) is replaced. `--model.depth 8` reaches into `init_args`,
    `--data FineWebEdu` sets the class.

    Raises:
        InputError: A file that cannot be read or is not a mapping, an unknown section, or an override without a value.
    """
    config: dict[str, Any] = {}
    for path in paths:
        config = _merge(config, _read(Path(path)))
    for key, value in _pairs(overrides):
        _set(config, key, value)
    for section in config:
        if section not in SECTIONS:
            raise InputError(f"{section!r}: unknown section of a config, must be one of {', '.join(SECTIONS)}")
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise InputError(f"config = {str(path)!r}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise InputError(f"config = {str(path)!r}: no YAML ({' '.join(str(error).split())})") from None
    if not isinstance(config, dict):
        raise InputError(f"config = {str(path)!r}: must hold sections such as model and trainer")
    return config


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _pairs(overrides: Sequence[str]) -> Iterable[tuple[str, Any]]:
    waiting = list(overrides)
    while waiting:
        option = waiting.pop(0)
        key, equals, text = option.partition("=")
        if not key.startswith("--") or (not equals and not waiting):
            raise InputError(f"{option!r}: overrides are pairs such as --trainer.max_steps 100")
        yield key.removeprefix("--"), parse_value(text if equals else waiting.pop(0))


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    parts = key.split(".")
    if parts[0] in SUBCLASS_SECTIONS:
        if len(parts) == 1:
            parts.append("class_path")
        elif parts[1] not in ("class_path", "init_args"):
            parts.insert(1, "init_args")
    here = config
    for part, below in itertools.pairwise(parts):
        if below == "init_args" and isinstance(here.get(part), str):
            here[part] = {"class_path": here[part]}
        here = here.setdefault(part, {})
        if not isinstance(here, dict):
            raise InputError(f"--{key}: {part} has no entries to override")
    here[parts[-1]] = value
