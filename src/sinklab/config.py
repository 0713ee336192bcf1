"""Configs as data: frozen, typed, told apart by the leaves that are not at their default."""

import hashlib
import json
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sinklab.errors import SinklabError, nearest


class Config(BaseModel):
    """A frozen group of settings; an unknown name is refused with the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    version: ClassVar[int] = 1  # raised when the meaning of the same settings changes


C = TypeVar("C", bound=Config)


def parse(kind: type[C], data: dict[str, Any]) -> C:
    """A config from plain data."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        hint = nearest(where, kind.model_fields) if first["type"] == "extra_forbidden" else ""
        raise SinklabError(f"{kind.__name__}: {where}: {first['msg']}.{hint}") from error


def difference(config: Config) -> dict[str, Any]:
    """The leaves that are not at their default, by dotted path."""
    plain = config.model_dump(mode="json")
    defaults = {name: f.get_default(call_default_factory=True) for name, f in type(config).model_fields.items() if not f.is_required()}
    found: dict[str, Any] = {}
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Config):
            found |= {f"{name}.{path}": leaf for path, leaf in difference(value).items()}
        elif name not in defaults or value != defaults[name]:
            found[name] = plain[name]
    return found


def identity(config: Config) -> str:
    """Twelve hexadecimal digits: the same for the same question, whatever fields are added later with a default."""
    content = json.dumps({"version": config.version, **difference(config)}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:12]
