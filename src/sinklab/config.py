"""Configs as data: frozen, typed, changed by path, told apart by the leaves that are not at their default."""

import hashlib
import inspect
import json
from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from sinklab.errors import SinklabError, nearest


class Config(BaseModel):
    """A frozen group of settings; an unknown name is refused with the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False, allow_inf_nan=False)
    version: ClassVar[int] = 1  # raised when the meaning of the same settings changes

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        for name in data if isinstance(data, dict) else ():
            if name not in cls.model_fields and name != "kind":
                raise ValueError(f"{cls.__name__} has no setting `{name}`.{nearest(name, cls.model_fields)}")
        return data


class Part(Config):
    """A member of a room. The class is the choice: as data it is a name (`"Sigmoid"`), or a name with settings (`{"kind": "Sigmoid", ...}`)."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """A member that lacks a method would be no member, in silence; what is meant to be abstract says so among its bases."""
        if inspect.isabstract(cls) and ABC not in cls.__bases__:
            raise TypeError(f"{cls.__name__} lacks {', '.join(sorted(cls.__abstractmethods__))}, which every {cls.__mro__[1].__name__} has.")

    @classmethod
    def members(cls) -> dict[str, type[Self]]:
        """The concrete classes of this room, by name."""
        found = {} if inspect.isabstract(cls) else {cls.__name__: cls}
        for child in cls.__subclasses__():
            found |= child.members()
        return found

    @model_validator(mode="wrap")
    @classmethod
    def _by_name(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, str):
            data = {"kind": data}
        if not isinstance(data, Mapping) or ("kind" not in data and not inspect.isabstract(cls)):
            return handler(data)
        known, kind = cls.members(), data.get("kind", "")
        if not isinstance(kind, str) or kind not in known:
            raise ValueError(f"`{kind}` is none of {', '.join(known)}.{nearest(str(kind), known)}")
        return known[kind].model_validate({name: value for name, value in data.items() if name != "kind"})


C = TypeVar("C", bound=Config)


def parse(kind: type[C], data: Mapping[str, Any]) -> C:
    """A config from plain data."""
    try:
        return kind.model_validate(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ").rstrip(".") if first["type"] != "value_error" else str(first["ctx"]["error"])
        raise SinklabError(f"{kind.__name__}: {where}: {said}{'' if said.endswith(('.', '?')) else '.'}".replace(": : ", ": ")) from error


def plain(value: Any) -> Any:
    """A config as what JSON holds, every leaf of it; `parse` gives it back."""
    if isinstance(value, Config):
        kind = {"kind": type(value).__name__} if isinstance(value, Part) else {}
        return kind | {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def short(value: Any) -> Any:
    """A part as one reads it: `Sigmoid(normaliser=RowSum)`; its settings where they are not at their default."""
    if isinstance(value, Part):
        inner = ", ".join(f"{name}={_inside(getattr(value, name))}" for name in type(value).model_fields if not _is_default(value, name))
        return f"{type(value).__name__}({inner})" if inner else type(value).__name__
    if isinstance(value, tuple | list):
        return [short(part) for part in value]
    return plain(value)


def formula(config: Config) -> str:
    """The first line of what it says of itself."""
    return (type(config).__doc__ or "").strip().splitlines()[0]


def _inside(value: Any) -> str:
    """A setting of a part, texts in quotes: two parts that differ are never written alike."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(short(value))


def override(config: C, path: str, text: str) -> C:
    """The same with one leaf or part replaced: `override(design, "weights.normaliser", "RowSum")`."""
    name, _, rest = path.partition(".")
    fields = type(config).model_fields
    if name not in fields:
        known = ", ".join(fields) or "none"
        raise SinklabError(f"{type(config).__name__} has no setting `{name}`.{nearest(name, fields) or f' Its settings: {known}.'}")
    former = getattr(config, name)
    if rest and not isinstance(former, Config):
        raise SinklabError(f"`{name}` of {type(config).__name__} is {short(former)}, which has no settings of its own.")
    value = override(former, rest, text) if rest else text if isinstance(former, str) else typed(text, isinstance(former, tuple))
    return parse(type(config), dict(config) | {name: value})


def changes(config: Config, base: Config, path: str = "") -> dict[str, Any]:
    """The leaves that are not as in `base`, by dotted path; a part of another class is one leaf, as one reads it."""
    found: dict[str, Any] = {}
    for name in type(config).model_fields:
        value, former, here = getattr(config, name), getattr(base, name), f"{path}{name}"
        if value == former and type(value) is type(former):
            continue
        if isinstance(value, Config) and type(value) is type(former):
            found |= changes(value, former, f"{here}.")
        else:
            found[here] = short(value)
    return found


def difference(config: Config) -> dict[str, Any]:
    """The leaves that are not at their default, by dotted path."""
    found: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        former = None if field.is_required() else field.get_default(call_default_factory=True)
        if isinstance(value, Config) and isinstance(former, Config) and type(value) is type(former):
            found |= changes(value, former, f"{name}.")
        elif isinstance(value, Config) and not isinstance(value, Part):
            found |= {f"{name}.{path}": leaf for path, leaf in difference(value).items()}
        elif field.is_required() or value != former:
            found[name] = short(value)
    return found


def identity(config: Config) -> str:
    """Twelve hexadecimal digits: the same for the same question, whatever fields are added later with a default."""
    content = {"version": config.version, **difference(config), **_versions(config)}
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:12]


def _versions(config: Config, path: str = "") -> dict[str, int]:
    """Of the parts whose meaning has changed since they were written."""
    found: dict[str, int] = {}
    for name in type(config).model_fields:
        value = getattr(config, name)
        for place, part in enumerate(value if isinstance(value, tuple) else (value,)):
            here = f"{path}{name}" + (f".{place}" if isinstance(value, tuple) else "")
            if isinstance(part, Config):
                found |= ({f"{here}@": part.version} if part.version > 1 else {}) | _versions(part, f"{here}.")
    return found


def _is_default(config: Config, name: str) -> bool:
    field = type(config).model_fields[name]
    return not field.is_required() and bool(getattr(config, name) == field.get_default(call_default_factory=True))


def typed(text: str, several: bool) -> Any:
    """A value that was typed: JSON where it is JSON, else the text itself; where several are wanted, by comma."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        if not several or text.lstrip().startswith(("[", "{")):
            return text
        return [part.strip() for part in text.split(",") if part.strip()]
    return [value] if several and not isinstance(value, list) else value
