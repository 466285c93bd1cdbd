"""Names of models: which ids a folder's files get, and which entry a name means. Pure; looks names up, opens nothing.

A name is looked for in this order, and the first rule that finds anything decides:

1. an id, exactly;
2. a configured alias, then a built-in one;
3. a file name or path below the models folder, with or without `.gguf` and leading folders, any part of a
   split set included;
4. rules 1 to 3 again without regard to case and to how accents are composed (NFC or NFD).

Where a rule finds several different files the name is ambiguous; nothing is ever picked silently.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

from .splits import FileSet, stem_of
from .walk import SUFFIX, display_name


def assign_ids(sets: Iterable[FileSet]) -> list[str]:
    """An id for each set, all distinct: the bare name where only one file has it, else with its folders."""
    sets = list(sets)
    bare = Counter(each.stem.rpartition("/")[2] for each in sets)
    ids: list[str] = []
    taken: set[str] = set()
    for each in sets:
        name = each.stem.rpartition("/")[2]
        found = display_name(name if bare[name] == 1 else each.stem)
        if found in taken:  # `m.gguf` beside `m.GGUF`, or an escape that spells another file's real name
            found = display_name(each.first.relative_path)
        copy = 2
        while found in taken:
            found, copy = f"{display_name(each.first.relative_path)}~{copy}", copy + 1
        taken.add(found)
        ids.append(found)
    return ids


def spellings(each: FileSet) -> set[str]:
    """Every name a set answers to besides its id: paths from any folder down, parts, the split set's prefix."""
    whole = {each.stem, *(stem_of(file.relative_path) for file in each.files)}
    whole |= {f"{stem}{SUFFIX}" for stem in whole} | {file.relative_path for file in each.files}
    if each.prefix is not None:
        whole.add(each.prefix)
    found: set[str] = set()
    for path in whole:
        pieces = display_name(path).split("/")
        found.update("/".join(pieces[start:]) for start in range(len(pieces)))
    return found


def fold(name: str) -> str:
    """A name without case and composition of accents, for the last rule."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


class NameIndex:
    """Looks a name up by the rules above; made once a scan."""

    def __init__(
        self,
        named: Iterable[tuple[str, Iterable[str]]],
        aliases: Mapping[str, str],
        builtin: Mapping[str, str],
    ) -> None:
        self._ids: dict[str, set[str]] = {}
        self._spellings: dict[str, set[str]] = {}
        for model_id, also in named:
            self._ids[model_id] = {model_id}
            for name in also:
                self._spellings.setdefault(name, set()).add(model_id)
        exact_aliases = [
            {alias: self._target(target) for alias, target in table.items()} for table in (aliases, builtin)
        ]
        self._rules = [self._ids, *exact_aliases, self._spellings]
        self._folded = [_folded(rule) for rule in self._rules]

    def find(self, name: str) -> set[str]:
        """Ids the name may mean; empty where it means none, as an alias does whose model is gone."""
        for rule in self._rules:
            if (hit := rule.get(name)) is not None:
                return set(hit)
        folded = fold(name)
        for rule in self._folded:
            if (hit := rule.get(folded)) is not None:
                return set(hit)
        return set()

    def _target(self, name: str) -> set[str]:
        """What an alias points at; an alias of an alias is not followed, so there are no loops."""
        return self._ids.get(name) or self._spellings.get(name) or set()


def _folded(rule: Mapping[str, set[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, ids in rule.items():
        found.setdefault(fold(name), set()).update(ids)
    return found
