"""Checks against schemas that come from outside, such as the expectations of a plan file."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from . import Problem, explain_all, json_validator

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


def schema_problems(schema: Any) -> list[Problem]:
    """What is wrong with a JSON Schema itself; empty when it is one."""
    from jsonschema import Draft202012Validator

    if not isinstance(schema, (dict, bool)):
        return [Problem("$", "a schema is an object")]
    meta = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    return explain_all(meta.iter_errors(schema)) or _faulty_patterns(schema, "$")


def given_problems(schema: dict[str, Any], document: Any) -> list[Problem]:
    """Every fault of the document by a schema that `schema_problems` found sound."""
    from referencing.exceptions import Unresolvable

    try:
        return explain_all(_validator(json.dumps(schema, sort_keys=True)).iter_errors(document))
    except Unresolvable as error:
        return [Problem("$", f"the schema refers to `{error.ref}`, which it does not hold")]


@lru_cache(maxsize=256)
def _validator(schema: str) -> Validator:
    # an empty registry: a reference never leaves the document, so no schema opens a connection
    from referencing.jsonschema import EMPTY_REGISTRY

    validator: Validator = json_validator()(json.loads(schema), registry=EMPTY_REGISTRY)
    return validator


def _faulty_patterns(schema: Any, path: str) -> list[Problem]:
    """Patterns that no regular expression is: the meta-schema does not look at them."""
    import re

    found: list[Problem] = []
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "pattern" and isinstance(value, str):
                try:
                    re.compile(value)
                except (re.error, RecursionError, OverflowError) as error:
                    found.append(Problem(f"{path}.pattern", f"is no regular expression: {error}"))
            elif key not in ("const", "enum", "default", "examples"):
                found += _faulty_patterns(value, f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]")
    elif isinstance(schema, list):
        for position, item in enumerate(schema):
            found += _faulty_patterns(item, f"{path}[{position}]")
    return found
