"""Strategies made from the plan classes, so that a new command is covered without a line here."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from localllm.planner.fields import METADATA_KEY, FieldSpec
from localllm.planner.plans import COMMANDS, plan_class

# Neither the clock nor chance decides whether a run of the tests passes.
settings.register_profile(
    "localllm", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("localllm")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FIELDS_AT_ONCE = 8
"""Optional fields of one example: a plan with dozens of them takes hypothesis too long to draw."""
PLAIN = FieldSpec(help="")
RULES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "models.unload": lambda raw: raw.get("all", False) == (raw.get("model") is None)
}
"""What plan classes ask beyond their schemas."""


def raw_plans_of(command: str) -> st.SearchStrategy[dict[str, Any]]:
    """Raw plans of one command: every field with a default may be missing."""
    plans = objects_of(plan_class(command)).map(lambda fields: {"command": command, **fields})
    return plans.filter(RULES[command]) if command in RULES else plans


def objects_of(cls: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    attrs.resolve_types(cls)
    required, optional = {}, {}
    for attribute in attrs.fields(cls):
        spec = attribute.metadata.get(METADATA_KEY)
        if spec is not None:
            target = required if attribute.default is attrs.NOTHING else optional
            target[attribute.name] = values_of(attribute.type, spec)
    if len(optional) <= FIELDS_AT_ONCE:
        return st.fixed_dictionaries(required, optional=optional)
    some = st.lists(st.sampled_from(sorted(optional)), max_size=FIELDS_AT_ONCE, unique=True)
    return some.flatmap(lambda names: st.fixed_dictionaries(required | {name: optional[name] for name in names}))


def values_of(annotation: Any, spec: FieldSpec) -> st.SearchStrategy[Any]:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(member, spec) for member in get_args(annotation)])
    if origin is Literal:
        return st.sampled_from(get_args(annotation))
    if origin is tuple:
        size = {"min_size": spec.min_length or 0, "max_size": min(spec.max_length or 3, 3)}
        item = FieldSpec(help="", min_length=spec.item_min_length, ge=spec.item_ge)
        return st.lists(values_of(get_args(annotation)[0], item), **size)
    if origin is dict:
        return st.dictionaries(TEXT, values_of(get_args(annotation)[1], PLAIN), max_size=3)
    if annotation is Any:
        return st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
            max_leaves=4,
        )
    if attrs.has(annotation):
        return objects_of(annotation)
    if annotation is type(None):
        return st.none()
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return st.integers(None if spec.ge is None else int(spec.ge), None if spec.le is None else int(spec.le))
    if annotation is float:
        low = spec.ge if spec.gt is None else spec.gt
        return st.floats(low, spec.le, exclude_min=spec.gt is not None, allow_nan=False, allow_infinity=False)
    assert annotation in (str, Path), annotation
    text = TEXT if spec.pattern is None else st.from_regex(spec.pattern, fullmatch=True)
    return text.filter(lambda value: len(value) >= (spec.min_length or 0))


@pytest.fixture(scope="session", params=sorted(COMMANDS))
def raw_plans(request: pytest.FixtureRequest) -> st.SearchStrategy[dict[str, Any]]:
    """A strategy of raw plans, one command after the other."""
    return raw_plans_of(request.param)


@pytest.fixture(scope="session")
def step_plans() -> st.SearchStrategy[dict[str, Any]]:
    """A strategy of raw plans of any command that a step of a plan file may run."""
    return st.sampled_from(sorted(set(COMMANDS) - {"serve", "replay"})).flatmap(raw_plans_of)
