"""Models that `models pull` knows how to fetch, and the short names they go by.

The table is JSON, not TOML, because every scan reads it, and a TOML parser takes 3 ms to import.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from attrs import frozen


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class KnownModel:
    """A GGUF file inside a wheel of the package index."""

    name: str
    package: str
    version: str
    member: str
    file: str
    size_bytes: int
    sha256: str
    license: str

    @property
    def model_id(self) -> str:
        """The id it has in the catalog once it is in the models folder."""
        return self.file.removesuffix(".gguf")


@cache
def known_models() -> dict[str, KnownModel]:
    """The pull table, by name."""
    text = Path(__file__).with_name("known.json").read_text("utf-8")
    return {name: KnownModel(name=name, **row) for name, row in json.loads(text).items()}
