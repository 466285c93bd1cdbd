"""The Jinja environment chat templates run in: immutable, bounded in time and size, and aware of who wrote what.

A template is code from a file that somebody downloaded. It sees plain data only, cannot load other files, and every
way to take long or to grow large passes a check: loops and calls tick a clock, operators and filters look at the sizes
they would make. `Template.render` is therefore safe to call in a thread that must come back.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, cast

import jinja2
from attrs import define, field
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.compiler import operators as compare_operators
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

from .filters import COMPARING_TESTS, FILTERS, guarded, weighed
from .limits import (
    MAX_ITEMS,
    MAX_SOURCE,
    Budget,
    TemplateLimit,
    TemplateRaised,
    check_numbers,
    check_replace,
    grown,
    modulo,
    plus,
    power,
    times,
    weigh,
)
from .provenance import Traced, formatted, holds_traced, joined, mark_in, spoken, traced


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 (the attribute is jinja2's)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Generator(CodeGenerator):
    """Sends `~` and comparisons through the environment, where sizes are checked and marks kept."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenated((")
        for arg in node.nodes:
            self.visit(arg, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("(environment.comparable(")
        self.visit(node.expr, frame)
        self.write(")")
        for op in node.ops:
            self.visit(op, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        self.write(f" {compare_operators[node.op]} environment.comparable(")
        self.visit(node.expr, frame)
        self.write(")")


class _Formatter(SandboxedFormatter):
    """Looks up the fields of `str.format` as the sandbox allows."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment of one chat template."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=self.printed,
            cache_size=0,
        )
        self._now = now
        self._thread = threading.local()
        self.concat = self.concatenated  # type: ignore[method-assign]
        self.binop_table.update({"+": plus, "*": times, "**": power, "%": modulo})
        self.globals.pop("lipsum", None)
        self.globals.update(raise_exception=_raise_exception, strftime_now=self._strftime_now, range=_range)
        for name, filter_ in list(self.filters.items()):
            self.filters[name] = guarded(name, filter_)
        for name, test in list(self.tests.items()):
            if name in COMPARING_TESTS:
                self.tests[name] = weighed(cast("Callable[..., Any]", test))
        self.filters.update(FILTERS, tojson=self._tojson, string=self.printed)

    @property
    def budget(self) -> Budget:
        """The budget of the render that runs in this thread."""
        found = getattr(self._thread, "budget", None)
        return found if found is not None else Budget(deadline=time.thread_time() + 1)

    def begin(self, time_limit_s: float) -> Budget:
        """Give the next render of this thread a new budget."""
        self._thread.budget = Budget(deadline=time.thread_time() + time_limit_s)
        return self.budget

    def tick(self) -> str:
        """Count one turn of a loop."""
        self.budget.tick()
        return ""

    def printed(self, value: Any) -> str:
        """`value` as the text that goes into the prompt."""
        if isinstance(value, str):
            return value
        if isinstance(value, (list, tuple, dict, set, frozenset)):
            weigh(value)
            if value:
                self.budget.printed.add(mark_in(value))
        return spoken(value)

    def comparable(self, value: Any) -> Any:
        """`value`, unless comparing it could take long."""
        if isinstance(value, (list, tuple, dict)):
            weigh(value)
        return value

    def concatenated(self, parts: Iterable[Any]) -> str:
        """The parts as one text."""
        texts = [self.printed(part) for part in parts]
        grown(sum(map(len, texts)))
        return joined("", texts)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call from a template: counted, with sizes checked, and methods of plain text made to keep marks."""
        __self.budget.tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            check_numbers(args)
            check_numbers(kwargs.values())
            if __obj.__name__ == "replace" and len(args) >= 2:
                check_replace(owner, *args[:2])
            if isinstance(__obj, BuiltinMethodType) and __obj.__name__ in _TEXT_METHODS and holds_traced([*args]):
                __obj = getattr(traced(owner), __obj.__name__)
            if __obj.__name__ == "join":
                args = (__self._joinable(owner, *args),)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, str):
            grown(len(result))
            if type(result) is str and not isinstance(__obj, Macro) and holds_traced([*args, *kwargs.values()]):
                return Traced(result)
        return result

    def _joinable(self, sep: str, items: Iterable[Any]) -> list[Any]:
        row = list(items)
        grown(sum(len(item) + len(sep) for item in row if isinstance(item, str)))
        return row

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """As the sandbox, and no bytes: they do not remember who wrote them."""
        return super().is_safe_attribute(obj, attr, value) and not (isinstance(obj, str) and attr in _UNMARKED)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `format_map` without private attributes, keeping marks."""
        if super().wrap_str_format(value) is None:
            return None if not _is_traced_format(value) else self._formatter(value)
        return self._formatter(value)

    def _formatter(self, method: Any) -> Callable[..., str]:
        template: str = method.__self__
        fields = _Formatter(self)

        def format_text(*args: Any, **kwargs: Any) -> str:
            if method.__name__ == "format_map":
                return formatted(template, (), args[0], fields)
            return formatted(template, args, kwargs, fields)

        return format_text

    def _generate(self, source: nodes.Template, name: Any, filename: Any, defer_init: bool = False) -> str:
        for loop in list(source.find_all(nodes.For)):
            tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(tick).set_lineno(loop.lineno))
        source.set_environment(self)
        return super()._generate(source, name, filename, defer_init)

    def _strftime_now(self, form: str) -> str:
        if len(form) > 200 or re.search(r"%[^a-zA-Z%]*\d", form):
            raise TemplateLimit("the chat template asks for a date in too long a form")
        return self._now().strftime(form)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        weigh(value)
        check_numbers((indent,))
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        grown(len(text))
        return Traced(text, mark_in(value)) if holds_traced(value) else text


def _is_traced_format(value: Any) -> bool:
    owner = getattr(value, "__self__", None)
    return isinstance(owner, Traced) and getattr(value, "__name__", "") in ("format", "format_map")


def _raise_exception(message: Any) -> None:
    raise TemplateRaised(str(message))


def _range(*args: int) -> range:
    steps = range(*args)
    try:
        length = len(steps)
    except OverflowError:
        length = MAX_ITEMS + 1
    if length > MAX_ITEMS:
        raise TemplateLimit(f"the chat template asks for a range of more than {MAX_ITEMS} steps")
    return steps


_TEXT_METHODS = frozenset(
    {"join", "replace", "center", "ljust", "rjust", "__add__", "__mod__", "removeprefix", "removesuffix", "translate"}
)
_UNMARKED = frozenset({"encode", "marks", "cut"})


@define
class Program:
    """A compiled template."""

    source: str
    environment: ChatEnvironment = field(factory=ChatEnvironment)
    _template: jinja2.Template = field(init=False)

    def __attrs_post_init__(self) -> None:
        if len(self.source) > MAX_SOURCE:
            raise TemplateLimit(f"the chat template is longer than {MAX_SOURCE} characters")
        self._template = self.environment.from_string(self.source)

    def run(self, variables: dict[str, Any], time_limit_s: float = 5.0) -> tuple[Traced, Budget]:
        """The rendered text with its marks, and what the render used.

        Raises whatever the template raises, and TemplateLimit.
        """
        budget = self.environment.begin(time_limit_s)
        context = self._template.new_context(variables)
        parts, length = [], 0
        for part in self._pieces(context):
            parts.append(part)
            length += len(part)
            grown(length)
        return traced(joined("", parts)), budget

    def _pieces(self, context: Context) -> Iterator[str]:
        return self._template.root_render_func(context)
