import pytest
from localllm.errors import UsageError
from localllm.planner.argv import asks_for_json
from localllm.planner.cli import help_page, parse
from localllm.planner.codec import load_plan
from localllm.planner.examples import OPENING, examples_of
from localllm.planner.global_options import GlobalOptions
from localllm.planner.plans import COMMANDS

LOAD = {"command": "models.load", "model": "m"}


def refused(*argv, **more):
    with pytest.raises(UsageError) as error:
        parse(list(argv), **more)
    return error.value


@pytest.mark.parametrize(
    "line",
    [
        "--dry-run --output json models load m",
        "models load m --dry-run --output json",
        "models --dry-run load m --output=json",
        "models load --output json m --dry_run",
        "--output text models load m --dry-run --output json",
        "--no-dry-run models --dry-run load --output yaml --output json m",
    ],
)
def test_options_of_every_command_go_anywhere_and_the_last_one_wins(line):
    invocation = parse(line.split())

    assert invocation.raw == LOAD
    assert invocation.options == GlobalOptions(output="json", dry_run=True)


def test_switches_have_two_forms_and_the_last_one_wins():
    assert parse(["models", "load", "m", "--no-mmap"]).raw == {**LOAD, "mmap": False}
    assert parse(["models", "load", "m", "--no-mmap", "--mmap"]).raw == {**LOAD, "mmap": True}
    assert parse(["models", "load", "m", "--mmap=off"]).raw == {**LOAD, "mmap": False}
    assert "is on or off" in refused("models", "load", "m", "--mmap=maybe").message


def test_short_options_take_their_value_attached_or_not():
    for spelling in (["-n", "5"], ["-n5"], ["-n=5"], ["--lines", "5"]):
        assert parse(["logs", *spelling]).raw == {"command": "logs", "lines": 5}
    assert parse(["-vvq", "logs", "-f"]).options == GlobalOptions(verbose=2, quiet=True)
    assert "has no option `-x`" in refused("logs", "-fx").message


def test_a_program_that_has_loaded_pydantic_parses_the_same() -> None:
    import pydantic  # noqa: F401  cyclopts then checks by it what the signature promises

    given = parse(["chat", "hello", "-m", "x"])

    assert given.raw["messages"] == [{"role": "user", "content": "hello"}]


def test_a_value_may_start_with_a_dash():
    raw = parse(
        [
            "chat",
            "--system",
            "-be brief",
            "--stop",
            "-",
            "--stop=--",
            "--temperature",
            "-1",
            "--top-k",
            "-1",
            "--",
            "--hi",
        ]
    ).raw

    assert raw["messages"] == [{"role": "system", "content": "-be brief"}, {"role": "user", "content": "--hi"}]
    assert raw["stop"] == ["-", "--"]
    assert raw["temperature"] == -1
    assert raw["top_k"] == -1
    assert parse(["config", "set", "port", "-5"]).raw["value"] == "-5"


def test_a_forgotten_value_does_not_swallow_the_next_option():
    error = refused("models", "load", "m", "--profile", "--dry-run")

    assert error.message == "`--profile` needs a value"
    assert error.hint == "write `--profile=--dry-run` if that is the value"
    assert "needs a value" in refused("models", "load", "m", "--profile").message
    assert "needs a value" in refused("models", "load", "m", "--profile", "--no-mmap").message


@pytest.mark.parametrize("text", ["none", "null", "True", '["a"]', '{"a": 1}', "a,b", "", " x ", "é👍"])
def test_a_text_reaches_the_plan_as_it_is(text):
    assert parse(["models", "load", text, f"--profile={text}"]).raw == {**LOAD, "model": text, "profile": text}
    assert parse(["chat", "hi", f"--stop={text}"]).raw["stop"] == [text]


@pytest.mark.parametrize(
    "line, words",
    [
        ("--output yaml models load m", "`--output`: `yaml` is not one of `text`, `json`"),
        ("models load", "`localllm models load` needs MODEL"),
        ("models load m --n-ctx abc", "`--n-ctx`: `abc` is not an integer"),
        ("models load m --gpu-layers x", "`--gpu-layers`: `x` is not an integer or one of `auto`, `all`"),
        ("models load m --cache-type-k q9", "`--cache-type-k`: `q9` is not one of `f32`"),
        ("chat hi --temperature hot", "`--temperature`: `hot` is not a number"),
        ("models load a b", "`localllm models load` takes no argument `b`"),
        ("models load m --n-ctxx 4", "`localllm models load` has no option `--n-ctxx`"),
        ("--n-ctx 4 models load m", "`localllm` has no option `--n-ctx`"),
        ("models laod m", "`localllm models` has no command `laod`"),
        ("model", "`localllm` has no command `model`"),
        ("models", "`localllm models` needs a command: `scan`, `list`"),
        ("--dry-run", "`localllm` needs a command: `status`, `models`"),
        ("chat --messages [", "`--messages` is not JSON"),
        ("chat", "there is no prompt"),
        ("chat -", "there is no standard input"),
        ("completion", "needs the name of a shell"),
        ("completion csh", "needs the name of a shell"),
    ],
)
def test_what_does_not_parse_is_said_in_words(line, words):
    error = refused(*line.split())

    assert words in error.message
    assert error.hint
    assert error.exit_code == 2


def test_a_near_miss_gets_the_right_name():
    assert refused("models", "laod").hint == "did you mean `localllm models load`?"
    assert refused("logs", "--level-x", "info").hint == "did you mean `--level`?"


def test_bounds_are_left_to_the_plan():
    assert parse(["models", "load", "m", "--n-ctx", "1"]).raw == {**LOAD, "n_ctx": 1}


def test_a_control_character_of_an_argument_never_reaches_a_message():
    assert "\x1b" not in refused("models", "\x1b]0;x\x07").message


def test_chat_takes_a_prompt_messages_or_both():
    system = {"role": "system", "content": "s"}
    user = {"role": "user", "content": "u"}

    assert parse(["chat", "u", "--system", "s"]).raw["messages"] == [system, user]
    assert parse(["chat", '--messages=[{"role":"user","content":"u"}]']).raw["messages"] == [user]
    assert parse(["chat", "u", '--messages=[{"role":"system","content":"s"}]']).raw["messages"] == [system, user]


def test_chat_reads_its_prompt_from_standard_input():
    piped = {"read_stdin": lambda: "from a pipe\n", "stdin_is_piped": True}

    assert parse(["chat"], **piped).raw["messages"] == [{"role": "user", "content": "from a pipe"}]
    assert parse(["chat", "-"], **piped).raw["messages"][0]["content"] == "from a pipe"
    assert parse(["chat", "given"], **piped).raw["messages"][0]["content"] == "given"
    assert "no prompt" in refused("chat", read_stdin=lambda: "", stdin_is_piped=True).message
    assert "no prompt" in refused("chat", read_stdin=lambda: "never read").message


@pytest.mark.parametrize(
    "words", [[], ["models"], ["bench"], *(command.split(".") for command in COMMANDS)], ids=" ".join
)
def test_every_help_page_teaches_with_examples(words):
    page = parse([*words, "--help"]).text

    assert page.startswith(f"Usage: {' '.join(['localllm', *words])}")
    assert "  localllm " in page
    assert "\x1b" not in page


def test_help_is_there_in_any_place_and_without_arguments():
    assert parse(["models", "load", "m", "--output", "json", "-h"]).text == help_page(["models", "load"])
    assert parse([]).text == help_page([])
    assert parse(["chat", "--", "--help"]).raw["messages"][0]["content"] == "--help"
    assert parse(["--output", "json", "--help"]).options.output == "json"


def test_a_help_page_says_what_an_option_takes():
    page = " ".join(help_page(["models", "load"]).split())

    assert "--n-ctx INT: Context length of one request in tokens" in page
    assert "unset takes the profile's or `auto` [choices: auto, on, off]" in page
    assert "--mmap, --no-mmap: Map the file instead of reading it; unset maps it" in page
    assert "Options of every command: --output" in page


@pytest.mark.parametrize("command", [*COMMANDS, ""])
def test_every_example_parses_to_a_plan_of_its_command(command):
    import shlex

    for line in examples_of(command) if command else OPENING:
        program, *argv = shlex.split(line.partition(" > ")[0].partition(" < ")[0])
        plan = load_plan(parse(argv, read_stdin=lambda: "question").raw)

        assert program == "localllm"
        assert plan.command == command or not command


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_know_commands_and_options(shell):
    invocation = parse(["completion", shell])

    assert invocation.kind == "completion"
    for word in ("localllm", "unload", "gpu-layers", "detailed-exitcode"):
        assert word in invocation.text


def test_version_is_asked_for_before_a_command():
    assert parse(["--version"]).kind == "version"
    assert parse(["--output", "json", "--version"]).options.output == "json"


@pytest.mark.parametrize(
    "argv, env, answer",
    [
        (["--output", "json", "x"], {}, True),
        (["x", "--output=json"], {}, True),
        (["--output", "json", "--output", "text"], {}, False),
        (["x", "--", "--output=json"], {}, False),
        (["x"], {"LOCALLLM_OUTPUT": "json"}, True),
        (["x", "--output"], {}, False),
    ],
)
def test_json_errors_are_recognised_on_a_line_that_does_not_parse(argv, env, answer):
    assert asks_for_json(argv, env) is answer
