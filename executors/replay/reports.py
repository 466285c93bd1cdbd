"""Reports of a replay for other programs and for people: JUnit XML, JSON, Markdown, each written as one step.

They are written from the kept records, one at a time, so a replay of many steps needs no more memory for them.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

from attrs import frozen

from ...errors import BadInput
from ..state import sync_folder
from .tally import Tally

FORMAT_VERSION = "1.0"
# what XML 1.0 cannot carry: controls, surrogates and two non-characters
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@frozen(kw_only=True)
class Suite:
    """One replayed file as reports show it; `records` reads its steps anew each time."""

    source: str
    name: str
    tally: Tally
    records: Callable[[], Iterator[dict[str, Any]]]


@frozen
class Report:
    """One report that was asked for."""

    kind: str
    path: Path

    def write(self, suites: Sequence[Suite], summary: dict[str, Any]) -> None:
        """Write it in the place of an older one. Raises OSError."""
        with _replacing(self.path) as file:
            WRITERS[self.kind](file, suites, summary)


def reports_of(given: Iterable[str]) -> list[Report]:
    """The reports that `--report KIND=FILE` asks for. Raises BadInput, also where a file's folder does not exist."""
    found: list[Report] = []
    for text in given:
        kind, _, path = text.partition("=")
        if kind not in WRITERS or not path:
            known = ", ".join(f"`{name}=FILE`" for name in WRITERS)
            raise BadInput(f"`{text}` is no report", hint=f"it is one of {known}", param="report")
        target = Path(path)
        if not target.absolute().parent.is_dir():
            raise BadInput(f"there is no folder `{target.parent}` for the report", param="report")
        if target.is_dir():
            raise BadInput(f"`{path}` is a folder, not a file for a report", param="report")
        found.append(Report(kind, target))
    return found


def told(suite: Suite) -> Iterator[dict[str, Any]]:
    """A suite's steps of this replay."""
    return (record for record in suite.records() if not record.get("earlier"))


def title_of(record: dict[str, Any]) -> str:
    """`3. the step's name`, with the iteration where there are several."""
    number = f"{record['step']}" + (f"[{record['iteration']}]" if "iteration" in record else "")
    return f"{number}. {record['name']}"


def words_of(record: dict[str, Any]) -> list[str]:
    """What was wrong with a step, a line each."""
    return [f"{problem['path']}: {problem['message']}" for problem in record.get("problems") or ()]


def _write_junit(file: TextIO, suites: Sequence[Suite], summary: dict[str, Any]) -> None:
    file.write('<?xml version="1.0" encoding="UTF-8"?>\n')
    file.write(_opening("testsuites", {"name": "localllm replay", **_counts(summary)}))
    for suite in suites:
        file.write(_opening("testsuite", {"name": suite.name, "file": suite.source, **_counts(suite.tally.as_dict())}))
        for record in told(suite):
            file.write(ElementTree.tostring(_testcase(suite, record), encoding="unicode") + "\n")
        file.write("</testsuite>\n")
    file.write("</testsuites>\n")


def _testcase(suite: Suite, record: dict[str, Any]) -> ElementTree.Element:
    place = record["place"]
    case = ElementTree.Element(
        "testcase",
        {
            "classname": _xml(suite.name),
            "name": _xml(title_of(record)),
            "time": f"{record.get('duration_ms', 0) / 1000:.3f}",
            "file": _xml(place["file"]),
            "line": str(place["line"]),
        },
    )
    if record["status"] == "failed":
        words = words_of(record)
        failure = ElementTree.SubElement(case, "failure", {"message": _xml(words[0]), "type": "expectation"})
        failure.text = _xml("\n".join(words))
    elif record["status"] == "skipped":
        ElementTree.SubElement(case, "skipped", {"message": _xml(record.get("reason", ""))})
    return case


def _opening(tag: str, attributes: dict[str, str]) -> str:
    element = ElementTree.Element(tag, {name: _xml(value) for name, value in attributes.items()})
    element.text = ""  # an element with a text is not closed at once
    whole = ElementTree.tostring(element, encoding="unicode", short_empty_elements=False)
    return whole.removesuffix(f"</{tag}>") + "\n"


def _counts(numbers: dict[str, Any]) -> dict[str, str]:
    return {
        "tests": str(numbers["total"]),
        "failures": str(numbers["failed"]),
        "errors": "0",
        "skipped": str(numbers["skipped"]),
        "time": f"{numbers['duration_ms'] / 1000:.3f}",
    }


def _xml(text: str) -> str:
    return _NOT_IN_XML.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def _write_json(file: TextIO, suites: Sequence[Suite], summary: dict[str, Any]) -> None:
    head = json.dumps({"format_version": FORMAT_VERSION, **summary})
    file.write(head.removesuffix("}") + ', "suites": [')
    for position, suite in enumerate(suites):
        described = json.dumps({"file": suite.source, "name": suite.name, **suite.tally.as_dict()})
        file.write(("," if position else "") + "\n" + described.removesuffix("}") + ', "steps": [')
        for number, record in enumerate(told(suite)):
            file.write(("," if number else "") + "\n" + json.dumps(record))
        file.write("]}")
    file.write("\n]}\n")


def _write_markdown(file: TextIO, suites: Sequence[Suite], summary: dict[str, Any]) -> None:
    verdict = "failed" if summary["failed"] else "passed"
    file.write(f"# Replay {verdict}: {summary['passed']} of {summary['total']} steps, score {summary['score']:g}\n\n")
    file.write("| file | passed | failed | skipped | seconds |\n|---|---|---|---|---|\n")
    for suite in suites:
        tally = suite.tally
        seconds = f"{tally.duration_ms / 1000:.2f}"
        file.write(f"| {_md(suite.name)} | {tally.passed} | {tally.failed} | {tally.skipped} | {seconds} |\n")
    for suite in suites:
        for record in told(suite):
            if record["status"] == "failed":
                place = record["place"]
                file.write(f"\n## {_md(title_of(record))}\n\n{_md(place['file'])}:{place['line']}\n\n")
                file.write("".join(f"- {_md(words)}\n" for words in words_of(record)))


def _md(text: str) -> str:
    """A text that stays text: no markup, no line break, no control character."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", shown)


WRITERS: dict[str, Callable[[TextIO, Sequence[Suite], dict[str, Any]], None]] = {
    "junit": _write_junit,
    "json": _write_json,
    "md": _write_markdown,
}


@contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """A new file that takes the place of `path` once it is whole; a crash before leaves the old one."""
    target = path.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), _mode(target))
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _mode(target: Path) -> int:
    """The mode of the file that is replaced, else what the umask leaves of 0666: a report is for others to read."""
    if target.exists():
        return target.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
