"""The command line: a signature synthesised from each plan class, parsed by cyclopts into a raw dict.

Nothing is checked here that `load_plan` checks: a wrong flag and a wrong file read the same.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import attrs
from attrs import field, frozen
from cyclopts import App, CoercionError, CycloptsError, Group, MissingArgumentError, Parameter, UnusedCliTokensError

from ..errors import UsageError
from .argv import Arguments, Flag, flag_of, printable, read_argv
from .fields import METADATA_KEY, FieldSpec, default_of, first_line
from .global_options import GlobalOptions, global_fields
from .plans import COMMANDS, plan_class

SHELLS = ("bash", "zsh", "fish")
BESIDES = {"chat": "ChatArguments", "complete": "TextArguments"}
"""Commands that take more on the command line than their plan's fields; `chat_request` has the classes."""
TEXTS = {"chat": "messages", "complete": "prompts"}
"""The field of their plans that stands for a prompt."""
GROUPS = {
    "models": "Find, load and fetch models",
    "auth": "Ask for an API key, or stop asking",
    "config": "Show and change settings",
    "plan": "Inspect plans, see what changed, and take it back",
    "bench": "Measure how fast answers come",
}
GLOBAL_GROUP = "Options of every command"
ANYWHERE = "`localllm COMMAND --help` explains a command. Options of every command, such as `--dry-run` and \
`--output json`, go before or after its name."
COMPLETION = 'Tab completion: eval "$(localllm completion bash)" (or zsh); localllm completion fish | source'
EXIT_CODES = "Exit codes: 0 done, 1 the answer is no, 2 bad input, 3 not found, 4 not allowed, 5 try later, \
6 the runtime failed, 7 no server, 10 a dry run would change something, 70 a bug, 130 interrupted."


@frozen(kw_only=True)
class Invocation:
    """What a command line asks for: a raw plan and how to run it, or a text to print (`kind` names it)."""

    raw: dict[str, Any] = field(factory=dict)
    options: GlobalOptions = field(factory=GlobalOptions)
    kind: Literal["plan", "help", "version", "completion"] = "plan"
    text: str = ""


def parse(
    argv: Sequence[str], *, read_stdin: Callable[[], str] | None = None, stdin_is_piped: bool = False
) -> Invocation:
    """Read an argument vector (without the program's name). Raises UsageError.

    `read_stdin` is asked for the prompt of `chat` if it is `-`, or if there is none and input is piped in.
    """
    if argv[:1] == ["completion"]:
        return _completion(argv[1:])
    found = read_argv(argv, COMMANDS, _global_flags(), _flags_of)
    if found.wants_version:
        return Invocation(kind="version", options=_options(found.options))
    if found.wants_help or not argv:
        return Invocation(kind="help", text=help_page(found.words), options=_options(found.options))
    if not found.command:
        raise _incomplete(found.words)
    given = _parse_with_cyclopts(found)
    names = {attribute.name for attribute in global_fields()}
    options = GlobalOptions(**{name: value for name, value in given.items() if name in names})
    raw = {name: value for name, value in given.items() if name not in names}
    if found.command in BESIDES:
        from .chat_request import fold_prompt, fold_text

        raw = _with_stdin(found.command, raw, read_stdin, stdin_is_piped)
        raw = fold_prompt(raw) if found.command == "chat" else fold_text(raw)
    return Invocation(raw={"command": found.command, **raw}, options=options)


def help_page(words: Sequence[str], *, width: int | None = None) -> str:
    """The help page of the whole program, of a noun (`models`), or of a command (`models load`) as plain text."""
    from io import StringIO

    from rich.console import Console

    page = StringIO()
    console = Console(file=page, width=width, no_color=True, highlight=False)
    _tree().help_print(list(words), console=console)
    lines = (line.rstrip() for line in page.getvalue().strip().splitlines())
    return "\n".join(lines) + "\n"


def _completion(words: Sequence[str]) -> Invocation:
    """The script that teaches a shell the commands and options: `localllm completion bash`."""
    shells = [word for word in words if not word.startswith("-")]
    if len(shells) != 1 or shells[0] not in SHELLS:
        choices = ", ".join(f"`{shell}`" for shell in SHELLS)
        raise UsageError(
            f"`localllm completion` needs the name of a shell: {choices}",
            hint='for bash: eval "$(localllm completion bash)"',
        )
    script = _tree().generate_completion(prog_name="localllm", shell=shells[0])  # type: ignore[arg-type]
    return Invocation(kind="completion", text=script)


def _incomplete(words: Sequence[str]) -> UsageError:
    place = " ".join(["localllm", *words])
    prefix = "".join(f"{word}." for word in words)
    choices = dict.fromkeys(name.removeprefix(prefix).split(".")[0] for name in COMMANDS if name.startswith(prefix))
    listed = ", ".join(f"`{choice}`" for choice in choices)
    return UsageError(f"`{place}` needs a command: {listed}", hint=f"`{place} --help` explains them")


def _with_stdin(command: str, raw: dict[str, Any], read_stdin: Callable[[], str] | None, piped: bool) -> dict[str, Any]:
    """A command with the prompt `-`, or without one while input is piped in, takes standard input for it."""
    field = TEXTS[command]
    wanted = raw.get("prompt") == "-" or (piped and "prompt" not in raw and field not in raw)
    if wanted:
        if read_stdin is None:
            raise UsageError(
                "there is no standard input to read the prompt from", hint="give it as an argument", param="prompt"
            )
        raw = {**raw, "prompt": read_stdin().rstrip("\n")}
    if not raw.get("prompt") and field not in raw:
        raise UsageError("there is no prompt", hint=f'localllm {command} "Why is the sky blue?"', param="prompt")
    return raw


def _global_flags() -> list[Flag]:
    return [flag for item in global_fields() if (flag := flag_of(item, is_global=True)) is not None]


def _flags_of(command: str) -> list[Flag]:
    return [flag for item in _fields_of(command) if (flag := flag_of(item)) is not None]


def _fields_of(command: str) -> list[attrs.Attribute[Any]]:
    """The fields a command line may fill: the plan's, and what the command takes besides; operands first."""
    found: dict[str, attrs.Attribute[Any]] = {}
    for cls in (*_besides(command), plan_class(command)):
        attrs.resolve_types(cls)
        for attribute in attrs.fields(cls):
            spec: FieldSpec | None = attribute.metadata.get(METADATA_KEY)
            if spec is not None and spec.cli:
                found[attribute.name] = attribute
    return sorted(found.values(), key=lambda item: not item.metadata[METADATA_KEY].positional)


def _besides(command: str) -> tuple[type[Any], ...]:
    if command not in BESIDES:
        return ()
    from . import chat_request

    return (getattr(chat_request, BESIDES[command]),)


def _options(given: dict[str, Any]) -> GlobalOptions:
    """The options that pages need: none is checked, because `--help` must always work."""
    output = given.get("output")
    return GlobalOptions(output=output if output in ("text", "json") else None)


def _parse_with_cyclopts(found: Arguments) -> dict[str, Any]:
    """Types, choices and missing operands, from the synthesised signature; what was not given stays out."""
    flags = {flag.field: flag for flag in [*_global_flags(), *_flags_of(found.command)]}
    tokens: list[str] = []
    for name, value in found.options.items():
        tokens += _canonical(flags[name], value)
    app = _leaf(found.command, name="localllm", only=frozenset(found.options))
    try:
        _, bound, _ = app.parse_args(
            [*tokens, "--", *found.operands], exit_on_error=False, print_error=False, end_of_options_delimiter="--"
        )
    except CycloptsError as error:
        raise _usage_error(found.command, error) from None
    json_fields = {item.name: item.type for item in _fields_of(found.command) if _travels_as_json(item.type)}
    given: dict[str, Any] = {name: [] for name, value in found.options.items() if value == []}
    for name, value in bound.arguments.items():
        given[name] = _from_json(name, value, json_fields[name]) if name in json_fields else value
    return given


def _canonical(flag: Flag, value: Any) -> list[str]:
    """One spelling for each option, so that the parser has nothing to guess."""
    if flag.kind == "switch":
        return [flag.name if value else f"--no-{flag.name[2:]}"]
    if flag.kind == "count":
        return [flag.name] * min(int(value), 9)
    if flag.kind == "list":
        return [f"{flag.name}={item}" for item in value]
    return [f"{flag.name}={value}"]


def _usage_error(command: str, error: CycloptsError) -> UsageError:
    """The parser's complaint in this program's words."""
    place = "localllm " + command.replace(".", " ")
    argument = getattr(error, "argument", None)
    name = str(argument.name) if argument is not None else None
    if isinstance(error, MissingArgumentError) and name is not None:
        message = f"`{place}` needs {name}"
    elif isinstance(error, UnusedCliTokensError):
        message = f"`{place}` takes no argument `{printable(str((error.unused_tokens or ['?'])[0]))}`"
    elif isinstance(error, CoercionError) and error.token is not None and argument is not None:
        message = f"`{name}`: `{printable(error.token.value)}` is not {_kind_of(argument.hint)}"
    else:
        message = " ".join(str(error).split()).rstrip(".")
        message = message[:1].lower() + message[1:]
    return UsageError(message, hint=f"`{place} --help` shows what it takes", param=name)


def _kind_of(annotation: Any) -> str:
    """A type in words: `an integer`, `one of auto, all`, `an integer or one of …`."""
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in get_args(annotation))
    members = [member for member in get_args(annotation) if member is not type(None)]
    if members:
        return " or ".join(_kind_of(member) for member in members)
    return {int: "an integer", float: "a number", str: "a text"}.get(annotation, "valid")


def _from_json(name: str, text: str, annotation: Any) -> Any:
    if text in _words_of(annotation):
        return text
    if annotation == tuple[float, ...] and not text.lstrip().startswith("["):
        text = f"[{text}]"  # `3,1` is how other programs take numbers
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        flag = "--" + name.replace("_", "-")
        hint = "put JSON in single quotes, or the shell takes it apart"
        raise UsageError(f"`{flag}` is not JSON: {error}", hint=hint, param=flag) from None


def _words_of(annotation: Any) -> set[str]:
    """The words that a field takes beside JSON."""
    literals = [member for member in get_args(annotation) if get_origin(member) is Literal]
    return {word for literal in literals for word in get_args(literal) if isinstance(word, str)}


def _travels_as_json(annotation: Any) -> bool:
    """Whether a field is more than a word on the command line: objects, and lists of anything but strings."""
    members = [member for member in get_args(annotation) if member is not type(None)]
    if get_origin(annotation) is tuple:
        return members[0] is not str
    if get_origin(annotation) is dict or annotation is Any or attrs.has(annotation):
        return True
    return get_origin(annotation) is not Literal and any(_travels_as_json(member) for member in members)


def _signature(
    fields: Sequence[attrs.Attribute[Any]], *, optional: bool, only: frozenset[str] | None
) -> inspect.Signature:
    """The fields as parameters, and the options of every command.

    `optional` lets none be missing. `only` leaves out the options that were not given, which takes most of the time
    off a parse; None keeps all, for help and completion.
    """
    group = Group(GLOBAL_GROUP, sort_key=9) if only is None else None
    names = {item.name for item in fields}
    parameters = [_parameter(item, optional=optional) for item in fields if only is None or _counts(item, only)]
    parameters += [
        _parameter(item, group=group)
        for item in global_fields()
        if item.name not in names and (only is None or item.name in only)
    ]
    return inspect.Signature(parameters)


def _counts(item: attrs.Attribute[Any], only: frozenset[str]) -> bool:
    required = item.default is attrs.NOTHING
    return item.metadata[METADATA_KEY].positional or required or item.name in only


def _parameter(item: attrs.Attribute[Any], *, optional: bool = False, group: Group | None = None) -> inspect.Parameter:
    spec: FieldSpec = item.metadata[METADATA_KEY]
    required = item.default is attrs.NOTHING and not optional
    annotation: Any = item.type
    settings: dict[str, Any] = {"help": spec.help, "negative_iterable": (), "negative_none": ()}
    settings["json_list"] = settings["json_dict"] = False  # a stop text may look like JSON
    if spec.positional:
        settings["allow_leading_hyphen"] = True
    else:
        settings["name"] = ["--" + (spec.flag or item.name.replace("_", "-")), *spec.aliases]
    if group is not None:
        settings["group"] = group
    elif spec.group is not None:
        settings["group"] = Group(spec.group, sort_key=8)
    if item.name == "verbose":
        settings["count"] = True
    if _travels_as_json(annotation):
        annotation, settings["metavar"] = str, "JSON"
    elif get_origin(annotation) is tuple:
        annotation = list[str]
    default = None if item.default is attrs.NOTHING else default_of(item)
    settings["show_default"] = default not in (None, (), False, {})
    if default is None and not required:
        annotation = annotation | None  # where pydantic is loaded, cyclopts holds defaults to their types too
    default = inspect.Parameter.empty if required else default
    kind = inspect.Parameter.POSITIONAL_ONLY if spec.positional else inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(item.name, kind, default=default, annotation=Annotated[annotation, Parameter(**settings)])


def _leaf(command: str, *, name: str, only: frozenset[str] | None = None) -> App:
    """The cyclopts app of one command; its function is never called, only its signature is read."""

    def collect(*_: Any, **__: Any) -> None:
        """Never runs."""

    # What stands in for a field, such as a prompt for messages, is settled after parsing.
    signature = _signature(_fields_of(command), optional=command in BESIDES, only=only)
    collect.__signature__ = signature  # type: ignore[attr-defined]
    collect.__annotations__ = {item.name: item.annotation for item in signature.parameters.values()}
    collect.__doc__ = first_line(plan_class(command))
    app = App(name=name, help=f"{first_line(plan_class(command))}.", version_flags=[])
    app.default(collect)
    return app


def _tree() -> App:
    """Every command as one cyclopts app, for help pages and completion."""
    from .examples import OPENING, examples_of

    epilogue = "\n\n".join([_example_text("Start here:", OPENING), ANYWHERE, COMPLETION, EXIT_CODES])
    root = App(
        name="localllm",
        help="Run GGUF models on your own machine, driven by plans that can be inspected and replayed.",
        help_epilogue=epilogue,
        help_formatter="plain",
        help_format="plaintext",
        version_flags=["--version"],
    )
    nouns: dict[str, App] = {}
    for position, command in enumerate(COMMANDS):
        *path, verb = command.split(".")
        parent = root
        for noun in path:
            if noun not in nouns:
                nouns[noun] = App(name=noun, help=f"{GROUPS.get(noun, noun)}.", version_flags=[])
                nouns[noun].sort_key = position
                verbs = [name for name in COMMANDS if name.startswith(f"{noun}.")]
                nouns[noun].help_epilogue = _example_text("Examples:", [examples_of(name)[0] for name in verbs])
                root.command(nouns[noun])
            parent = nouns[noun]
        leaf = _leaf(command, name=verb)
        leaf.sort_key = position
        leaf.help_epilogue = _example_text("Examples:", examples_of(command))
        parent.command(leaf)
    return root


def _example_text(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])
