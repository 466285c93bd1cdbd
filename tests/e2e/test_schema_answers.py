"""A small real model at a high temperature keeps every schema: ten seeds of twenty schemas, eight at a time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from jsonschema import Draft202012Validator
from localllm.runtime.pool import LocalRuntime
from localllm.runtime.types import Constraint, Finished, GenerateRequest, LoadSpec, Piece, Sampling

SEEDS = range(10)
MOST_CUT = 10
"""Answers of the two hundred that may run into the limit of tokens."""


def closed(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


WORD = {"type": "string", "pattern": "^[a-z]{1,8}$"}
SHORT = {"type": "string", "maxLength": 12}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
POINT = {"$ref": "#/$defs/point"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "boolean": closed(ok={"type": "boolean"}),
    "enum": closed(colour={"enum": ["red", "green", "blue"]}),
    "enum of many types": {"enum": [1, "one", None, True, [1], {"a": 1}]},
    "constant": closed(kind={"const": "note"}, text=SHORT),
    "integer bounds": closed(low={"type": "integer", "minimum": -5, "maximum": 5}, high=DIGIT),
    "exclusive bounds": closed(x={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 4}),
    "number bounds": closed(share={"type": "number", "minimum": 0, "maximum": 1}),
    "pattern": closed(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    "string bounds": closed(name={"type": "string", "minLength": 2, "maxLength": 10}),
    "date": closed(day={"type": "string", "format": "date"}),
    "array bounds": {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 4},
    "nested arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        "minItems": 1,
        "maxItems": 3,
    },
    "tuple": {
        "type": "array",
        "prefixItems": [DIGIT, WORD, {"type": "boolean"}],
        "items": False,
        "minItems": 3,
        "maxItems": 3,
    },
    "any of types": closed(value={"anyOf": [DIGIT, WORD, {"type": "null"}]}),
    "any of objects": {"anyOf": [closed(cat={"const": True}, name=WORD), closed(dog=DIGIT)]},
    "reference": {
        "$defs": {"point": closed(x=DIGIT, y=DIGIT)},
        **closed(a={"$ref": "#/$defs/point"}, b={"$ref": "#/$defs/point"}),
    },
    "recursion": {
        "$defs": {"node": closed(("next",), v=DIGIT, next={"$ref": "#/$defs/node"})},
        "$ref": "#/$defs/node",
    },
    "optional": closed(("b", "c"), a=WORD, b=DIGIT, c={"type": "boolean"}),
    "deep": closed(a=closed(b=closed(c={"type": "array", "items": WORD, "maxItems": 2}))),
    "nullable": closed(
        note={"type": ["string", "null"], "maxLength": 8},
        size={"type": ["integer", "null"], "maximum": 99, "minimum": 0},
    ),
}


@frozen
class Told:
    """One answer and why it ended."""

    name: str
    seed: int
    text: str
    reason: str


async def told(runtime: LocalRuntime, name: str, seed: int) -> Told:
    request = GenerateRequest(
        request_id=f"{name}-{seed}",
        messages=({"role": "user", "content": "Make up some JSON."},),
        sampling=Sampling(seed=seed, temperature=1.5),
        constraint=Constraint(kind="json_schema", source=SCHEMAS[name]),
        max_tokens=120,
    )
    text, reason = "", ""
    async for output in runtime.generate("m", request):
        if isinstance(output, Piece):
            text += output.text
        elif isinstance(output, Finished):
            reason = output.reason
    return Told(name, seed, text, reason)


@pytest.mark.model
@pytest.mark.timeout(600)  # on two cores that also do other work it took one minute
def test_every_answer_that_stops_keeps_its_schema_and_nearly_all_stop(model_path: Path) -> None:
    async def all_of_them() -> list[Told]:
        runtime = LocalRuntime()
        try:
            await runtime.load(LoadSpec(model_id="m", path=str(model_path), n_ctx=2048, n_slots=8))
            at_once = asyncio.Semaphore(8)

            async def one(name: str, seed: int) -> Told:
                async with at_once:
                    return await told(runtime, name, seed)

            return await asyncio.gather(*(one(name, seed) for name in SCHEMAS for seed in SEEDS))
        finally:
            await runtime.aclose()

    answers = asyncio.run(all_of_them())

    stopped = [answer for answer in answers if answer.reason == "stop"]
    assert len(answers) == len(SCHEMAS) * len(SEEDS) == 200
    assert len(stopped) >= len(answers) - MOST_CUT
    for answer in stopped:
        validator = Draft202012Validator(SCHEMAS[answer.name], format_checker=Draft202012Validator.FORMAT_CHECKER)
        assert validator.is_valid(json.loads(answer.text)), answer
