"""Families of chat models as data: how to find one by name, and what its conversations look like.

`families.toml` lists them in order of search, each with a Jinja file beside it. A new family is a table and a
file; no code.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import field, frozen

_PACKAGE = "localllm.runtime.conversation.families"


@frozen(kw_only=True)
class Family:
    """What the models of one family have in common."""

    name: str
    file: str
    """The Jinja file in this folder."""
    patterns: tuple[str, ...] = ()
    """Regular expressions that find the family in a lower-case name."""
    architectures: tuple[str, ...] = ()
    """Values of `general.architecture` that mean this family."""
    end_tokens: tuple[str, ...] = ()
    """End-of-text tokens that only this family has."""
    markers: tuple[str, ...] = ()
    """Text that shows a template to be of this family; all must be there."""
    bos_token: str = ""
    eos_token: str = ""
    stop: tuple[str, ...] = ()
    tool_format: str = "hermes"
    reasoning: tuple[tuple[str, str], ...] = ()
    """Opening and closing tags of what the model thinks."""
    source: str = field(default="", repr=False)


@frozen
class Catalogue:
    """All families, and the tool formats and reasoning tags that templates show."""

    families: tuple[Family, ...]
    tool_markers: tuple[tuple[str, str], ...]
    """Text in a template, and the tool format it stands for; the first that fits counts."""
    reasoning: tuple[tuple[str, str], ...]
    """Tags that a template may use."""
    end_marks: tuple[str, ...]
    """Ends of a turn that a template may use."""

    def named(self, name: str) -> Family | None:
        """The family of exactly that name."""
        return next((family for family in self.families if family.name == name), None)


@cache
def catalogue() -> Catalogue:
    """The families that ship with the package."""
    folder = files(_PACKAGE)
    raw = tomllib.loads((folder / "families.toml").read_text(encoding="utf-8"))
    families = [_family(table, (folder / table["file"]).read_text(encoding="utf-8")) for table in raw["family"]]
    return Catalogue(
        families=tuple(families),
        tool_markers=tuple((entry["text"], entry["format"]) for entry in raw["tool_marker"]),
        reasoning=tuple((entry["open"], entry["close"]) for entry in raw["reasoning"]),
        end_marks=tuple(raw["end_marks"]),
    )


def _family(table: Mapping[str, Any], source: str) -> Family:
    lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list) and key != "reasoning"}
    reasoning = tuple((opening, closing) for opening, closing in table.get("reasoning", ()))
    return Family(**{**table, **lists, "reasoning": reasoning}, source=source)


def family_of_names(names: Iterable[str]) -> Family | None:
    """The family of the first name that shows one; among several in a name, the first in the catalogue."""
    for name in names:
        for family in catalogue().families:
            if any(re.search(pattern, name.lower()) for pattern in family.patterns):
                return family
    return None


def family_of_metadata(metadata: Mapping[str, Any], eos_token: str) -> Family | None:
    """The family a GGUF's own facts show: its name, then its architecture, then its end-of-text token.

    The architecture `llama` is that of many families and says nothing.
    """
    named = [str(metadata[key]) for key in ("general.name", "general.basename") if metadata.get(key)]
    found = family_of_names(named)
    architecture = str(metadata.get("general.architecture") or "")
    by_architecture = [family for family in catalogue().families if architecture in family.architectures]
    by_end = [family for family in catalogue().families if eos_token and eos_token in family.end_tokens]
    return found or next(iter([*by_architecture, *by_end]), None)


def family_of_template(source: str) -> Family | None:
    """The family whose marks a template carries."""
    return next(
        (family for family in catalogue().families if family.markers and all(m in source for m in family.markers)), None
    )


def generic() -> Family:
    """The family of last resort."""
    found = catalogue().named("generic")
    assert found is not None
    return found
