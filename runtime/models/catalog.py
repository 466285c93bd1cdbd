"""The models of a folder: what is there, whether it can be loaded, and which one a name means."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

from attrs import evolve, frozen
from attrs import field as attrs_field

from ...errors import AmbiguousName, ModelLoadFailed, ModelNotFound, Unsupported
from .gguf import InvalidGGUF, Kind, SplitInfo, read_header
from .known import known_models
from .names import NameIndex, assign_ids, spellings
from .splits import FileSet, group
from .walk import FoundFile, display_name, find_files

_A_KIND: dict[str, str] = {
    "projector": "a projector of images or sound",
    "adapter": "an adapter for another model",
    "vocabulary": "a vocabulary without weights",
}


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class FileFacts:
    """What one file's header says, kept between scans while the file is unchanged."""

    stamp: tuple[int, int, int, int]
    """Device, inode, size, mtime."""
    reason: str | None = None
    kind: Kind | None = None
    architecture: str | None = None
    name: str | None = None
    context_length: int | None = None
    quantization: str | None = None
    parameter_count: int = 0
    split: SplitInfo | None = None


@frozen(kw_only=True)
class Entry:
    """One model of the folder, loadable or not; `path` is the machine's, `relative_path` may be shown to anyone."""

    id: str
    path: str
    relative_path: str
    parts: tuple[str, ...]
    """Every file of it, in order; one, but for a split set."""
    size_bytes: int
    mtime_ns: int
    valid: bool
    reason: str | None = None
    """Why it cannot be loaded, where `valid` is False."""
    kind: Kind | None = None
    """None where the header cannot be read."""
    architecture: str | None = None
    name: str | None = None
    context_length: int | None = None
    quantization: str | None = None
    parameter_count: int | None = None
    aliases: tuple[str, ...] = ()
    duplicate_of: str | None = None
    """Id of the entry that is the same file under another name."""

    @property
    def mtime(self) -> float:
        """When the file was last written, in seconds since 1970."""
        return self.mtime_ns / 1e9

    @property
    def loadable(self) -> bool:
        """Whether it is a whole, valid model, and not a projector, adapter or vocabulary."""
        return self.valid and self.kind == "model"


@frozen(kw_only=True, slots=False, eq=False, repr=False)  # unused methods would only slow the start
class Catalog:
    """A scan's outcome; entries sorted by relative path."""

    models_dir: str
    entries: tuple[Entry, ...] = ()
    warnings: tuple[str, ...] = ()
    aliases: Mapping[str, str] = attrs_field(factory=dict)
    files: Mapping[str, FileFacts] = attrs_field(factory=dict, repr=False)
    names: Mapping[str, frozenset[str]] = attrs_field(factory=dict, repr=False)
    """Id → other names it answers to."""

    @property
    def loadable(self) -> tuple[Entry, ...]:
        """The entries that can be loaded."""
        return tuple(entry for entry in self.entries if entry.loadable)

    def get(self, model_id: str) -> Entry | None:
        """The entry with exactly this id."""
        return self._by_id.get(model_id)

    def resolve(self, name: str) -> Entry:
        """The entry a name means (rules in `names`), loadable or not. Raises ModelNotFound, AmbiguousName."""
        if not name:
            raise ModelNotFound("no model was named", hint=self._what_exists(), available=self._available)
        ids = self._index.find(name)
        originals = {self._by_id[each].duplicate_of or each for each in ids}
        if len(originals) == 1:
            return self._by_id[ids.pop() if len(ids) == 1 else originals.pop()]
        if originals:
            candidates = sorted(originals)
            listed = ", ".join(f"`{each}`" for each in candidates)
            raise AmbiguousName(
                f"the name `{name}` fits {len(candidates)} models", hint=f"name one of {listed}", candidates=candidates
            )
        hint = self._way_out(name) or self._nearest(name) or self._what_exists()
        raise ModelNotFound(f"no model has the name `{name}`", hint=hint, available=self._available)

    @cached_property
    def _by_id(self) -> dict[str, Entry]:
        return {entry.id: entry for entry in self.entries}

    @cached_property
    def _index(self) -> NameIndex:
        builtin = {k.name: k.model_id for k in known_models().values() if k.model_id in self._by_id}
        return NameIndex(self.names.items(), self.aliases, builtin)

    @property
    def _available(self) -> list[str]:
        return [entry.id for entry in self.loadable]

    def _way_out(self, name: str) -> str | None:
        if name in self.aliases:
            return f"it is an alias of `{self.aliases[name]}`, which does not exist"
        if name in known_models():
            return f"`localllm models pull {name}` fetches it"
        return None

    def _nearest(self, name: str) -> str | None:
        import difflib  # only a name that is not found needs it

        known = [*self._available, *(alias for entry in self.loadable for alias in entry.aliases)]
        close = difflib.get_close_matches(name, known[:1000], n=1, cutoff=0.75)
        return f"did you mean `{close[0]}`?" if close else None

    def _what_exists(self) -> str:
        ids = self._available
        if not ids:
            return "the models folder holds no model; `localllm models pull smollm2-135m` fetches a small one"
        listed = ", ".join(f"`{each}`" for each in ids[:8])
        return f"there {'is' if len(ids) == 1 else 'are'} {listed}{f' and {len(ids) - 8} more' if len(ids) > 8 else ''}"


def scan(
    models_dir: str | os.PathLike[str],
    *,
    aliases: Mapping[str, str] | None = None,
    previous: Catalog | None = None,
) -> Catalog:
    """Walk a folder and read every header. Reads only; with `previous`, unchanged files are not read again."""
    root = os.path.abspath(models_dir)
    if not Path(root).is_dir():
        return Catalog(models_dir=root, warnings=("the models folder does not exist",), aliases=dict(aliases or {}))
    found, warnings = find_files(root)
    known = previous.files if previous is not None else {}
    files = {file.path: _facts(file, known.get(file.path)) for file in found}
    sets = group(found)
    entries = _entries(sets, files)
    names = {entry.id: frozenset(spellings(each)) for entry, each in zip(entries, sets, strict=True)}
    catalog = Catalog(
        models_dir=root,
        entries=entries,
        warnings=tuple(warnings),
        aliases=dict(aliases or {}),
        files=files,
        names=names,
    )
    return _with_aliases(catalog)


def require_loadable(entry: Entry) -> None:
    """Raise for an entry that must not reach llama.cpp: ModelLoadFailed with the reason, Unsupported for its kind."""
    if not entry.valid:
        raise ModelLoadFailed(f"`{entry.id}` {entry.reason}", model=entry.id, reason=entry.reason)
    if entry.kind != "model":
        what = _A_KIND.get(str(entry.kind), "not a model")
        raise Unsupported(f"`{entry.id}` is {what} and cannot be loaded as a model", model=entry.id, kind=entry.kind)


def _facts(file: FoundFile, known: FileFacts | None) -> FileFacts:
    stamp = (file.device, file.inode, file.size_bytes, file.mtime_ns)
    if known is not None and known.stamp == stamp:
        return known
    try:
        header = read_header(file.path, exact=False)
    except InvalidGGUF as error:
        return FileFacts(stamp=stamp, reason=error.reason)
    reason = None
    if header.version == 1:
        reason = "has the GGUF version 1, which llama.cpp no longer reads; convert the model again"
    elif header.metadata.get("general.type") == "imatrix":
        reason = "is an importance matrix, not a model"
    elif header.kind == "model" and header.architecture is None:
        reason = "names no architecture"
    return FileFacts(
        stamp=stamp,
        reason=reason,
        kind=header.kind,
        architecture=header.architecture,
        name=header.name,
        context_length=header.context_length,
        quantization=header.quantization,
        parameter_count=header.parameter_count,
        split=header.split,
    )


def _entries(sets: list[FileSet], files: Mapping[str, FileFacts]) -> tuple[Entry, ...]:
    entries = [_entry(model_id, each, files) for model_id, each in zip(assign_ids(sets), sets, strict=True)]
    originals: dict[tuple[int, int], tuple[bool, int]] = {}
    for position, each in enumerate(sets):
        place = (each.first.device, each.first.inode)
        originals[place] = min(originals.get(place, (True, position)), (each.first.linked, position))
    for position, each in enumerate(sets):
        original = originals[each.first.device, each.first.inode][1]
        if original != position:
            entries[position] = evolve(entries[position], duplicate_of=entries[original].id)
    return tuple(entries)


def _entry(model_id: str, each: FileSet, files: Mapping[str, FileFacts]) -> Entry:
    parts = [files[file.path] for file in each.files]
    first = parts[0]
    reason = each.problem or _problem(each, parts)
    return Entry(
        id=model_id,
        path=each.first.path,
        relative_path=display_name(each.first.relative_path),
        parts=tuple(file.path for file in each.files),
        size_bytes=sum(file.size_bytes for file in each.files),
        mtime_ns=max(file.mtime_ns for file in each.files),
        valid=reason is None,
        reason=reason,
        kind=first.kind,
        architecture=first.architecture,
        name=first.name,
        context_length=first.context_length,
        quantization=first.quantization,
        parameter_count=sum(part.parameter_count for part in parts) or None,
    )


def _problem(each: FileSet, parts: list[FileFacts]) -> str | None:
    """What is wrong with a complete set's headers, alone or against its file names."""
    for number, (file, facts) in enumerate(zip(each.files, parts, strict=True)):
        where = f"part {number + 1} of {each.count}, `{display_name(file.relative_path)}`, " if each.count > 1 else ""
        if facts.reason is not None:
            return f"{where}{facts.reason}"
        split = facts.split
        if split is None:
            continue
        if split.count > 1 and each.count == 1:
            return f"is part {split.number + 1} of a split set of {split.count}, which its file name does not say"
        if each.count > 1 and (split.number, split.count) != (number, each.count):
            return f"{where}says it is part {split.number + 1} of {split.count}"
    return None


def _with_aliases(catalog: Catalog) -> Catalog:
    """The same catalog with each entry's aliases filled in."""
    by_id: dict[str, list[str]] = {}
    for alias in _alias_names(catalog.aliases):
        ids = catalog._index.find(alias)
        if len(ids) == 1 and alias not in ids:
            by_id.setdefault(next(iter(ids)), []).append(alias)
    if not by_id:
        return catalog
    entries = tuple(evolve(entry, aliases=tuple(by_id.get(entry.id, ()))) for entry in catalog.entries)
    return evolve(catalog, entries=entries)


def _alias_names(aliases: Mapping[str, str]) -> Iterable[str]:
    return sorted({*aliases, *known_models()})
