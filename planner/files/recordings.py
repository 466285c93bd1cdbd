"""Recordings: plan files that a server writes step by step, one line each.

A line is JSON, which YAML takes too. The file only ever grows by whole lines, so one that was cut at any byte is read
up to its last whole step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .document import FORMAT_MAJOR, FORMAT_MINOR

MARK = b"# localllm recording"
"""How a recording begins."""
LARGEST_STEP_BYTES = 15_000_000
"""A longer step would make a file that no reader takes."""
_ESCAPE = re.compile(r"\\(?:u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|(ud[89a-f][0-9a-f]{2})|.)")


def recording_head(name: str) -> bytes:
    """The lines before the first step."""
    return b"%s: append-only, one step a line\n%sname: %s\nsteps:\n" % (
        MARK,
        f'format_version: "{FORMAT_MAJOR}.{FORMAT_MINOR}"\n'.encode(),
        json.dumps(name).encode(),
    )


def recording_line(step: Mapping[str, Any]) -> bytes:
    """One step as a line that is JSON and YAML alike; its texts are data, so no `${` in them is a reference."""
    literal = {**step, "plan": escaped(step["plan"])}
    text = json.dumps(literal, separators=(", ", ": "))
    # YAML knows no surrogate pairs, and JSON no longer escapes: beyond 16 bits the character itself stands there
    return b"- " + _ESCAPE.sub(_joined, text).encode() + b"\n"


def escaped(value: Any) -> Any:
    """The value with every `${` written so that a plan file takes it as text."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, Mapping):
        return {escaped(key): escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [escaped(item) for item in value]
    return value


def whole_part(content: bytes) -> bytes:
    """What of a recording is whole: a step that was being written when its server died is left out.

    Any other file is given back as it is.
    """
    if not content.startswith(MARK):
        return content
    whole = content
    if not content.endswith(b"\n"):
        head, newline, tail = content.rpartition(b"\n")
        whole = content if _is_whole(tail) else head + newline
    return whole.removesuffix(b"steps:\n") if whole.endswith(b"\nsteps:\n") else whole


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line.removeprefix(b"- "))
    except ValueError:
        return False
    return line.startswith(b"- ")


def _joined(match: re.Match[str]) -> str:
    high, low, lone = match.groups()
    if lone is not None:
        return "\\ufffd"  # half of a pair is no character
    if high is None:
        return match.group()
    return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
