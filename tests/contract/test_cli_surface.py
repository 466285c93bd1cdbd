"""The command line as a surface: every command is there, maps to its plan, and its summary keeps what matters.

One case a command line; the score is printed at the end of the run.
"""

from __future__ import annotations

from typing import Any

import pytest
from localllm.planner.cli import help_page, parse
from localllm.planner.codec import dump_plan, load_plan
from localllm.planner.plans import COMMANDS
from localllm.planner.settings import resolve_settings
from localllm.planner.summary import summarize

GLOBAL = ["--models-dir", "/srv/models", "--output", "json"]

CASES: list[tuple[str, str, dict[str, Any], dict[str, str]]] = [
    ("status", "status", {}, {}),
    ("models scan", "models.scan", {}, {}),
    ("models list", "models.list", {"kind": "model"}, {"kind": "model (default)"}),
    ("models list --kind all", "models.list", {"kind": "all"}, {"kind": "all"}),
    ("models show tiny", "models.show", {"model": "tiny"}, {"model": "tiny"}),
    (
        "models load tiny",
        "models.load",
        {"model": "tiny", "n_ctx": None, "gpu_layers": None},
        {"model": "tiny", "make_default": "no (default)"},
    ),
    (
        "models load tiny --profile turbo4b --n-ctx 4096 --gpu-layers 12 --no-mmap",
        "models.load",
        {"profile": "turbo4b", "n_ctx": 4096, "gpu_layers": 12, "mmap": False},
        {"profile": "turbo4b", "n_ctx": "4096", "gpu_layers": "12", "mmap": "no"},
    ),
    ("models load tiny --make-default", "models.load", {"make_default": True}, {"make_default": "yes"}),
    ("models unload tiny", "models.unload", {"model": "tiny", "all": False}, {"model": "tiny", "all": "no (default)"}),
    ("models unload --all --force", "models.unload", {"model": None, "all": True}, {"all": "yes", "force": "yes"}),
    ("models pull smollm2-135m", "models.pull", {"name": "smollm2-135m"}, {"name": "smollm2-135m"}),
    ("auth enable", "auth.enable", {}, {}),
    ("auth disable", "auth.disable", {}, {}),
    ("auth status", "auth.status", {}, {}),
    ("config get port", "config.get", {"key": "port"}, {"key": "port"}),
    ("config set port 8485", "config.set", {"key": "port", "value": "8485"}, {"key": "port", "value": "8485"}),
    ("config unset port", "config.unset", {"key": "port"}, {"key": "port"}),
    ("config list", "config.list", {}, {}),
    (
        "bench latency",
        "bench.latency",
        {"requests": 16, "warmup": 2, "max_tokens": 48},
        {"requests": "16 (default)", "warmup": "2 (default)", "max_tokens": "48 (default)"},
    ),
    ("bench latency --requests 4", "bench.latency", {"requests": 4}, {"requests": "4"}),
    (
        "bench throughput --clients 3",
        "bench.throughput",
        {"clients": 3, "requests": 2},
        {"clients": "3", "requests": "2 (default)"},
    ),
    ("logs", "logs", {"lines": 50, "follow": False}, {"lines": "50 (default)", "level": "info (default)"}),
    ("logs -n 5 -f --level error", "logs", {"lines": 5, "follow": True}, {"lines": "5", "level": "error"}),
    ("doctor", "doctor", {}, {}),
    (
        "chat hello",
        "chat",
        {"model": "local-model", "temperature": 0.8},
        {"messages": "1 message, the last from user: hello", "temperature": "0.8 (default)"},
    ),
    (
        "chat hello -m tiny --system brief --max-tokens 9 --stop END",
        "chat",
        {"model": "tiny", "max_tokens": 9, "stop": ["END"]},
        {"messages": "2 messages, the last from user: hello", "model": "tiny", "stop": "'END'"},
    ),
    (
        "chat hello --tool-choice required --dry-multiplier 0.8 --thinking-budget 32",
        "chat",
        {"tool_choice": "required", "dry_multiplier": 0.8, "thinking_budget": 32, "tools": []},
        {"tool_choice": "required", "dry_multiplier": "0.8", "thinking_budget": "32", "tools": "none (default)"},
    ),
    (
        "complete once --max-tokens 9 --choice a --choice b",
        "complete",
        {"prompts": ["once"], "max_tokens": 9, "choice": ["a", "b"], "logprobs": None},
        {"prompts": "'once'", "max_tokens": "9", "choice": "'a', 'b'", "seed": "unset (default)"},
    ),
    (
        "serve",
        "serve",
        {"port": None, "backend": "llama"},
        {"port": "unset (default)", "backend": "llama (default)", "drain_s": "10.0 (default)"},
    ),
    ("serve --model tiny --port 0", "serve", {"model": "tiny", "port": 0}, {"model": "tiny", "port": "0"}),
    ("apply saved.json", "apply", {"file": "saved.json"}, {"file": "saved.json"}),
    (
        "replay a.plan.yaml b.plan.yaml --jobs 2 --from 3 --var model=tiny --report junit=r.xml",
        "replay",
        {"files": ["a.plan.yaml", "b.plan.yaml"], "jobs": 2, "from_step": "3", "var": ["model=tiny"]},
        {"files": "'a.plan.yaml', 'b.plan.yaml'", "jobs": "2", "timeout_s": "600.0 (default)"},
    ),
    ("plan lock a.yaml --model tiny", "plan.lock", {"file": "a.yaml", "models": ["tiny"]}, {"models": "'tiny'"}),
    ("plan log -n 5", "plan.log", {"lines": 5}, {"lines": "5"}),
    ("plan undo last", "plan.undo", {"entry": "last"}, {"entry": "last"}),
    ("explain load.json", "explain", {"target": ["load.json"]}, {"target": "'load.json'"}),
    (
        "explain -- chat hello --max-tokens 3",
        "explain",
        {"target": ["chat", "hello", "--max-tokens", "3"]},
        {"target": "'chat', 'hello', '--max-tokens', '3'"},
    ),
    ("plan validate a.json b.yaml", "plan.validate", {"files": ["a.json", "b.yaml"]}, {"files": "'a.json', 'b.yaml'"}),
    ("plan diff a.json b.json", "plan.diff", {"a": "a.json", "b": "b.json"}, {"a": "a.json", "b": "b.json"}),
    ("plan id a.json --var n=3", "plan.id", {"file": "a.json", "var": ["n=3"]}, {"var": "'n=3'"}),
    ("schema", "schema", {"name": None}, {"name": "unset (default)"}),
    ("schema plan-file", "schema", {"name": "plan-file"}, {"name": "plan-file"}),
    ("version", "version", {}, {}),
]


@pytest.mark.parametrize("line, command, fields, rows", CASES, ids=[case[0] for case in CASES])
def test_a_command_line_maps_to_its_plan_and_its_summary_keeps_what_matters(line, command, fields, rows):
    invocation = parse([*GLOBAL, *line.split()])
    plan = load_plan(invocation.raw)
    dumped = dump_plan(plan)
    settings = resolve_settings(invocation.options.flags(), {}, config_file="/dev/null")
    first, *rest = summarize(plan, settings).splitlines()
    shown = dict(part.strip().split("  ", 1) for part in rest)
    shown = {name: value.strip() for name, value in shown.items()}

    assert dumped["command"] == command
    assert {name: dumped[name] for name in fields} == fields
    assert first == f"localllm {command.replace('.', ' ')}"
    assert shown["output"] == "json"
    assert shown["models folder"] == "/srv/models"
    assert {name: shown[name] for name in rows} == rows
    assert set(dumped) - {"command"} <= set(shown), "every argument and every default is in the summary"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_on_its_help_page(command):
    words = command.split(".")

    assert f"Usage: localllm {' '.join(words)}" in help_page(words)
    assert f"  {words[-1]}:" in help_page(words[:-1])


def test_every_command_has_a_case():
    assert {case[1] for case in CASES} == set(COMMANDS)
