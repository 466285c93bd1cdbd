"""Plan files from disk: read, checked and expanded before any step runs, with every fault of every file told at once.

What cannot be known before something has run (captures) is left open: structure, commands, field names and the
values that are known are checked here, the rest when the step is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, overload

from attrs import define, field, frozen

from ...errors import BadInput, LocalLLMError, NotFound, PayloadTooLarge
from .check import Report, check_step
from .document import FORMAT_MAJOR, FORMAT_MINOR
from .nodes import Node, Place, plain
from .outline import LISTS
from .source import Source, read_source
from .steps import PlanFile, Step, Variables
from .texts import TextFault, compose, looks_like_json, read_text
from .variables import UNKNOWN, VariableFault, from_environment

DEEPEST_INCLUDE = 100
"""How many files may be included within each other."""
MOST_STEPS = 1_000_000
"""How many steps a file may have once its includes are written out."""


def load_plan_files(
    paths: Iterable[str],
    *,
    vars: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> list[PlanFile]:
    """Read, expand and check plan files; nothing runs.

    `vars` holds what `--var` and `--vars-file` gave, and wins over the environment (`LOCALLLM_VAR_*`), which wins
    over a file's own `vars`; those that an `include` names win within it. `texts` holds the text of files that were
    read already. Raises InvalidPlan whose
    `data["problems"]` lists every `{file, line, column, path, message}` of all files, NotFound where the only fault
    is files that do not exist, and PayloadTooLarge above 16 MB.
    """
    strong = {**from_environment(env or {}), **(vars or {})}
    report = Report()
    files: list[PlanFile] = []
    for path in paths:
        loader = _Loader(str(path), strong, env or {}, report, texts or {})
        loaded = loader.load()
        loader.let_go()
        if loaded is not None:
            files.append(loaded)
    report.raise_if_faulty()
    return files


def read_document(path: str) -> tuple[str, Node]:
    """The text of a plan file and its nodes. Raises NotFound, BadInput with `file:line:column`, PayloadTooLarge."""
    text = read_text(path)
    try:
        return text, compose(text, is_json=looks_like_json(path, text))
    except TextFault as fault:
        raise BadInput(f"{path}:{fault.line}:{fault.column}: {fault.message}") from None


def read_vars_file(path: str) -> dict[str, Any]:
    """The variables of a `--vars-file`, YAML or JSON. Raises NotFound and BadInput."""
    found = plain(read_document(path)[1])
    if not isinstance(found, dict):
        raise BadInput(f"`{path}` holds no variables, which would be `name: value`")
    return found


@frozen
class _Held:
    """Where a step of an expanded file comes from."""

    source: Source
    list_name: str
    position: int
    variables: Variables


@frozen(eq=False)
class _Steps(Sequence[Step]):
    """The steps of an expanded file, each made when it is asked for; `first` is the number of the first."""

    held: list[_Held]
    first: int

    def __len__(self) -> int:
        return len(self.held)

    @overload
    def __getitem__(self, position: int) -> Step: ...

    @overload
    def __getitem__(self, position: slice) -> list[Step]: ...

    def __getitem__(self, position: int | slice) -> Step | list[Step]:
        if isinstance(position, slice):
            return [self[each] for each in range(*position.indices(len(self.held)))]
        held = self.held[position]
        index = self.first + position % len(self.held)
        return held.source.step(held.list_name, held.position, index, held.variables)


@define
class _Loader:
    """Loads one file with what it includes. `trail` holds the files that are open, each within the one before."""

    path: str
    strong: Mapping[str, Any]
    env: Mapping[str, str]
    report: Report
    texts: Mapping[str, str]
    trail: list[Path] = field(factory=list)
    sources: dict[Path, Source | None] = field(factory=dict)
    captured: dict[str, Any] = field(factory=dict)
    count: int = 0

    def load(self) -> PlanFile | None:
        source = self._source(self.path, None)
        if source is None:
            return None
        document = source.document
        variables = Variables(given=document.get("vars", {}), strong=self.strong, env=self.env)
        steps, final = self._file(source, variables)
        return PlanFile(
            source=self.path,
            name=document.get("name") or _stem(self.path),
            format_version=str(document["format_version"]),
            steps=_Steps(steps, 1),
            finally_=_Steps(final, len(steps) + 1),
            lock=document.get("lock"),
            variables=variables,
            digest=self._digest(),
        )

    def _digest(self) -> str:
        import hashlib
        import json

        found = hashlib.sha256(json.dumps(self.strong, sort_keys=True).encode())
        for source in self.sources.values():
            text = "" if source is None else source.text or ""
            found.update(b"\0" + text.encode("utf-8", "surrogatepass"))
        return found.hexdigest()

    def let_go(self) -> None:
        """Drop what only faults need."""
        for source in self.sources.values():
            if source is not None:
                source.let_go()

    def _source(self, path: str, included_at: Callable[[], Place] | None) -> Source | None:
        """The file's source, read once; None where it cannot be used, which the report then says."""
        resolved = Path(path).resolve() if path != "-" else Path("-")
        if resolved not in self.sources:
            self.sources[resolved] = self._read(path, included_at)
        return self.sources[resolved]

    def _read(self, path: str, included_at: Callable[[], Place] | None) -> Source | None:
        try:
            source, found = read_source(path, self.texts[path] if path in self.texts else read_text(path))
        except TextFault as fault:
            self.report.add(Place(path, fault.line, fault.column), "$", fault.message)
            return None
        except LocalLLMError as error:
            if isinstance(error, PayloadTooLarge):
                raise
            place = Place(path) if included_at is None else included_at()
            self.report.add(place, "$", error.message, missing=isinstance(error, NotFound))
            return None
        if not self._version_is_known(source, bool(found)):
            return None
        for refused, message in found:
            self.report.add_at(source.path, source.root(), refused, message)
        within_steps = all(len(refused) > 1 and refused[0] in LISTS for refused, _ in found)
        return source if within_steps else None

    def _version_is_known(self, source: Source, has_problems: bool) -> bool:
        """Refuse an unknown major version; with a newer minor one, say so where something is not known."""
        version = source.document.get("format_version")
        major, _, minor = str(version).partition(".")
        if not major.isdecimal() or (minor and not minor.isdecimal()):
            if version is not None:
                self.report.add_at(source.path, source.root(), ("format_version",), "is a version like `1.0`")
            return version is None
        ours = f"{FORMAT_MAJOR}.{FORMAT_MINOR}"
        if int(major) != FORMAT_MAJOR:
            message = f"the format version is `{version}`, this localllm reads {ours}"
            self.report.add_at(source.path, source.root(), ("format_version",), message)
            return False
        if has_problems and int(minor or 0) > FORMAT_MINOR:
            message = f"the file is of format {version} and says what {ours} does not know: use a newer localllm"
            self.report.add_at(source.path, source.root(), ("format_version",), message)
        return True

    def _file(self, source: Source, variables: Variables) -> tuple[list[_Held], list[_Held]]:
        """The expanded steps of a file, and those of its `finally`."""
        self.trail.append(Path(source.path).resolve())
        if not self._settles(source, ("vars",), variables):
            self.trail.pop()
            return [], []
        steps, late = self._list(source, "steps", variables)
        final, later = self._list(source, "finally", variables)
        self.trail.pop()
        return steps, [*late, *final, *later]

    def _settles(self, source: Source, path: tuple[str | int, ...], variables: Variables) -> bool:
        try:
            variables.values(self.captured)
        except VariableFault as fault:
            self.report.add_at(source.path, source.root(), path, str(fault))
            return False
        return True

    def _list(self, source: Source, name: str, variables: Variables) -> tuple[list[_Held], list[_Held]]:
        steps: list[_Held] = []
        late: list[_Held] = []
        for position in range(len(source.steps(name))):
            self.count += 1
            if self.count > MOST_STEPS:
                self.report.add_at(source.path, source.root(), (name,), f"there are more than {MOST_STEPS:,} steps")
                break
            path = (name, position)
            raw = source.raw(name, position)
            if "include" in raw:
                more, final = self._include(source, path, raw, variables)
                steps += more
                late += final
                continue
            if "plan" not in raw:
                continue
            step = source.step(name, position, 0, variables)
            check_step(step, partial(_node_at, source, path), self.captured, self.report)
            self.captured.update(dict.fromkeys(step.capture, UNKNOWN))
            steps.append(_Held(source, name, position, variables))
        return steps, late

    def _include(
        self, source: Source, path: tuple[str | int, ...], raw: Mapping[str, Any], variables: Variables
    ) -> tuple[list[_Held], list[_Held]]:
        def place() -> Place:
            return source.place((*path, "include"))

        misplaced = sorted(set(raw) - {"name", "include", "vars"})
        if misplaced:
            message = f"a step that includes a file takes no {', '.join(f'`{name}`' for name in misplaced)}"
            self.report.add(place(), "$", message)
            return [], []
        target = str(Path(source.path).parent / raw["include"])
        resolved = Path(target).resolve()
        if resolved in self.trail:
            circle = [*self.trail[self.trail.index(resolved) :], resolved]
            self.report.add(place(), "$", f"the file includes itself: {' → '.join(_shown(item) for item in circle)}")
            return [], []
        if len(self.trail) > DEEPEST_INCLUDE:
            self.report.add(place(), "$", f"more than {DEEPEST_INCLUDE} files include each other")
            return [], []
        found = self._source(target, place)
        if found is None:
            return [], []
        passed = Variables(given=raw.get("vars", {}), outer=variables, env=self.env)
        if not self._settles(source, (*path, "vars"), passed):
            return [], []
        # What is passed wins over the file's own block, so the own block lies beneath it.
        names = set(raw.get("vars", {}))
        own = {name: value for name, value in found.document.get("vars", {}).items() if name not in names}
        inner = Variables(given=own, outer=passed, strong=_without(self.strong, names), env=self.env)
        return self._file(found, inner)


def _node_at(source: Source, path: tuple[str | int, ...]) -> Node:
    return source.root().at(path)


def _without(given: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


def _stem(path: str) -> str:
    name = Path(path).name
    for ending in (".plan.yaml", ".plan.yml", ".plan.json", ".yaml", ".yml", ".json"):
        if name.endswith(ending) and name != ending:
            return name.removesuffix(ending)
    return name


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


__all__ = ["PlanFile", "load_plan_files", "read_document", "read_vars_file"]
