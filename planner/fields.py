"""How a plan class declares a field once, for attrs, the JSON Schema and the command line alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol

import attrs

Effect = Literal["read", "create", "update", "delete", "network", "gpu", "exec"]
Where = Literal["local", "server", "either"]

METADATA_KEY = "localllm"


class Plan(Protocol):
    """What every plan class has: its name, where it runs, what it may change."""

    command: ClassVar[str]
    where: ClassVar[Where]
    effects: ClassVar[tuple[Effect, ...]]
    on_server: ClassVar[bool]
    """Whether `POST /admin/plans` accepts it."""


@attrs.frozen(kw_only=True)
class FieldSpec:
    """What a plan field says beyond its type; read by the schema generator and the CLI.

    `ge`, `le`, `gt` bound numbers; `min_length`, `max_length` bound strings and sequences; `pattern` is an
    ECMA-compatible regular expression that must match somewhere; `cli` is False for fields that only JSON
    can carry, `flag` renames the CLI flag, `aliases` adds short ones, `example` fills docs and tests.
    """

    help: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    item_min_length: int | None = None
    """The least length of each text in a list."""
    item_ge: float | None = None
    """The least value of each number in a list."""
    pattern: str | None = None
    choices: tuple[Any, ...] | None = None
    cli: bool = True
    flag: str | None = None
    aliases: tuple[str, ...] = ()
    group: str | None = None
    """The heading it stands under on a help page."""
    positional: bool = False
    client_path: bool = False
    """Names a file or folder of the machine the plan was written on, so it may not travel to a server."""
    secret: bool = False
    """Never shown, never in a file: only the environment may carry it."""
    example: Any = None


def option(
    default: Any = attrs.NOTHING,
    *,
    help: str,
    factory: Callable[[], Any] | None = None,
    **spec: Any,
) -> Any:
    """A named field of a plan (`--flag` on the command line)."""
    return _field(FieldSpec(help=help, **spec), default, factory, kw_only=True)


def argument(default: Any = attrs.NOTHING, *, help: str, **spec: Any) -> Any:
    """A positional field of a plan (an operand on the command line, never a bare flag)."""
    return _field(FieldSpec(help=help, positional=True, **spec), default, None, kw_only=False)


def spec_of(attribute: attrs.Attribute[Any]) -> FieldSpec:
    """The `FieldSpec` that `option` or `argument` attached."""
    found: FieldSpec = attribute.metadata[METADATA_KEY]
    return found


def default_of(attribute: attrs.Attribute[Any]) -> Any:
    """The default's value, made by its factory where it has one; `attrs.NOTHING` where there is none."""
    default: Any = attribute.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def own_fields_first(cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """The order in which people read a plan that shares fields: what it is about, then how it is done."""
    return sorted(fields, key=lambda field: field.name not in cls.__annotations__)


def first_line(cls: type[Any]) -> str:
    """The first line of a class's docstring without its full stop: CLI help and schema description."""
    return (cls.__doc__ or "").strip().split("\n")[0].rstrip(".")


def _field(spec: FieldSpec, default: Any, factory: Callable[[], Any] | None, *, kw_only: bool) -> Any:
    if factory is not None:
        default = attrs.Factory(factory)
    return attrs.field(
        default=default,
        kw_only=kw_only,
        validator=_bounds(spec) if _is_bounded(spec) else None,
        repr=not spec.secret,
        metadata={METADATA_KEY: spec},
    )


def _is_bounded(spec: FieldSpec) -> bool:
    """Whether there is anything to check; each validator that a class goes without shortens the start."""
    bounds = (spec.ge, spec.gt, spec.le, spec.min_length, spec.max_length, spec.item_min_length, spec.item_ge)
    return any(bound is not None for bound in (*bounds, spec.pattern, spec.choices))


def _bounds(spec: FieldSpec) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """The validator that enforces the same bounds the schema publishes, for plans built in Python."""

    def check(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        problem = problem_with(spec, value)
        if problem is not None:
            raise ValueError(f"`{attribute.name}`: {problem}")

    return check


def problem_with(spec: FieldSpec, value: Any) -> str | None:
    """What is wrong with a value, by the field's bounds; None when nothing is."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if spec.ge is not None and not value >= spec.ge:
            return f"{value} is less than the minimum of {spec.ge}"
        if spec.gt is not None and not value > spec.gt:
            return f"{value} is not above {spec.gt}"
        if spec.le is not None and not value <= spec.le:
            return f"{value} is greater than the maximum of {spec.le}"
    if isinstance(value, (str, Sequence)):
        if spec.min_length is not None and len(value) < spec.min_length:
            return f"is shorter than {spec.min_length}"
        if spec.max_length is not None and len(value) > spec.max_length:
            return f"is longer than {spec.max_length}"
        shortest = spec.item_min_length
        if shortest is not None and any(isinstance(item, str) and len(item) < shortest for item in value):
            return f"holds a text shorter than {shortest}"
        least = spec.item_ge
        if least is not None and any(isinstance(item, (int, float)) and item < least for item in value):
            return f"holds a number below {least}"
    if isinstance(value, str) and spec.pattern is not None:
        import re

        if re.search(spec.pattern, value) is None:
            return f"`{value}` does not match `{spec.pattern}`"
    if spec.choices is not None and value not in spec.choices:
        return f"`{value}` is not one of {', '.join(f'`{c}`' for c in spec.choices)}"
    return None
