"""One plan file that was read: what it says, what the schema refuses of it, and where its values stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from ...schemas import Problem, load_schema, problems
from .nodes import Node, Path, Place, path_of
from .outline import Outline, read_outline
from .packed import Packed
from .steps import Retry, Step, Variables
from .texts import compose, looks_like_json


@define(eq=False)
class Source:
    """A file that was read. Its nodes, which take far more memory than its values, are made only for a fault."""

    path: str
    outline: Outline
    text: str | None
    faulty: dict[Path, set[Any]] = field(factory=dict)
    """What the schema refused within each step: the rest of it, and the other steps, are checked all the same."""
    _root: Node | None = None

    @property
    def document(self) -> Mapping[str, Any]:
        """What the file says besides its steps."""
        found: Mapping[str, Any] = self.outline.document
        return found

    def root(self) -> Node:
        """The nodes of the whole file. Not once `let_go` was called."""
        if self._root is None:
            assert self.text is not None
            self._root = compose(self.text, is_json=looks_like_json(self.path, self.text))
        return self._root

    def place(self, path: Path) -> Place:
        """Where a value stands, or the nearest one above it that exists."""
        node = self.root().at(path)
        return Place(self.path, node.line, node.column)

    def let_go(self) -> None:
        """Drop what only faults need."""
        self.text = self._root = None

    def steps(self, name: str) -> Packed:
        """The items of a list of steps; none where the file has no such list."""
        return self.outline.lists.get(name, _NONE)

    def raw(self, name: str, position: int) -> dict[str, Any]:
        """A step as it stands in the file, without what the schema refused of it."""
        raw = self.steps(name).value(position)
        if not isinstance(raw, dict):
            return {}
        refused = self.faulty.get((name, position), ())
        return {key: value for key, value in raw.items() if key not in refused} if refused else raw

    def step(self, name: str, position: int, index: int, variables: Variables) -> Step:
        """A step with the defaults of the file filled in. Only where it holds a plan."""
        raw = self.raw(name, position)
        defaults = self.document.get("defaults") or {}
        command = raw["plan"].get("command")
        retry = raw.get("retry") or defaults.get("retry")
        continues = raw.get("continue_on_error")
        return Step(
            index=index,
            name=raw.get("name") or str(command),
            plan={**_plan_defaults(defaults, command), **raw["plan"]},
            place=Place(self.path, *self.steps(name).place(position)),
            node_path=(name, position),
            variables=variables,
            if_=raw.get("if", True),
            for_each=raw.get("for_each"),
            expect=raw.get("expect"),
            capture=raw.get("capture", {}),
            retry=Retry(**retry) if retry else None,
            timeout_s=raw.get("timeout_s") or defaults.get("timeout_s"),
            continue_on_error=defaults.get("continue_on_error", False) if continues is None else continues,
            dry_run=raw.get("dry_run", False),
            tags=tuple(dict.fromkeys([*defaults.get("tags", ()), *raw.get("tags", ())])),
            recorded=raw.get("recorded"),
        )


def read_source(path: str, text: str) -> tuple[Source, list[tuple[Path, str]]]:
    """A text as a source, and what the schema refuses of it by path. Raises TextFault."""
    outline = read_outline(text, is_json=looks_like_json(path, text))
    found = [(path_of(problem.path), problem.message) for problem in _problems(outline)]
    if not isinstance(outline.document, dict):
        outline.document = {}
    source = Source(path, outline, text)
    for refused, _ in found:
        source.faulty.setdefault(refused[:2], set()).update(refused[2:3])
    return source, found


def _problems(outline: Outline) -> list[Problem]:
    """What the schema refuses: of the document with its lists empty, then of each step for itself."""
    document = outline.document
    bounds = load_schema("plan-file")["properties"]
    crowded: dict[str, Any] = {
        name: [{"plan": {}}] * len(held)
        for name, held in outline.lists.items()
        if len(held) > bounds[name]["maxItems"]  # only then does the schema need to see that there are so many
    }
    found = problems("plan-file", {**document, **crowded} if crowded else document, open_at=("plan",))
    for name, held in outline.lists.items():
        alone = f"$.{name}[0]"
        for position in range(len(held)):
            document = {"format_version": "1.0", name: [held.value(position)]}
            found += [
                Problem(f"$.{name}[{position}]{problem.path.removeprefix(alone)}", problem.message)
                for problem in problems("plan-file", document, open_at=("plan",))
            ]
    return found


def _plan_defaults(defaults: Mapping[str, Any], command: Any) -> dict[str, Any]:
    plans: Mapping[str, Any] = defaults.get("plans", {})
    return dict(plans.get(command, {})) if isinstance(command, str) else {}


_NONE = Packed()
