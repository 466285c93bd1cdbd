"""The name of a plan: a hash over what it says, the same for argv, HTTP and a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

LARGEST_EXACT_INTEGER = 2**53 - 1
"""Beyond it a JSON number is a double that may have lost digits, so such integers are hashed as strings."""


def plan_id(plan: Mapping[str, Any]) -> str:
    """`sha256:` and the hex digest over the plan's RFC 8785 form.

    `plan` is what `dump_plan` gives: defaults filled in, `command` included, nothing about time, host or transport.
    """
    import rfc8785

    return "sha256:" + _sha256(rfc8785.dumps(_exact(plan)))


def _sha256(data: bytes) -> str:
    """The hex digest, by the interpreter's own module: loading OpenSSL for one small hash takes 3 ms of every call.

    The standard library's `random` does the same; without the module (or with it renamed) `hashlib` serves.
    """
    name = "_sha2" if sys.version_info >= (3, 12) else "_sha256"
    try:
        module = __import__(name)
    except ImportError:
        import hashlib as module
    digest: str = module.sha256(data).hexdigest()
    return digest


def _exact(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST_EXACT_INTEGER:
        return str(value)
    if isinstance(value, Mapping):
        return {key: _exact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_exact(item) for item in value]
    return value
