"""One intent through the command line, HTTP and a file is one plan with one id."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FLAGS = ("--dry-run", "--output", "json")
CASES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("models", "load", "smollm2-135m"), {"command": "models.load", "model": "smollm2-135m"}),
    (
        ("models", "load", "smollm2-135m", "--n-ctx", "2048", "--gpu-layers", "0", "--no-mmap"),
        {"command": "models.load", "model": "smollm2-135m", "n_ctx": 2048, "gpu_layers": 0, "mmap": False},
    ),
    (("models", "unload", "--all"), {"command": "models.unload", "all": True}),
    (("status",), {"command": "status"}),
    (("logs", "-n", "3", "--level", "error"), {"command": "logs", "lines": 3, "level": "error"}),
    (
        ("chat", "hello", "--temperature", "0", "--stop", "a", "--stop", "b"),
        {
            "command": "chat",
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0,
            "stop": ["a", "b"],
        },
    ),
]
NAMES = [" ".join(args) for args, _ in CASES]


def report_of(finished: Any) -> dict[str, Any]:
    assert finished.code == 0, finished.err + finished.out
    report: dict[str, Any] = json.loads(finished.out)
    return report


def identity(report: dict[str, Any]) -> tuple[Any, str]:
    return report["plan"], report["plan_id"]


@pytest.fixture
def models_env(models_dir: Path, model_path: Path) -> dict[str, str]:
    return {"LOCALLLM_MODELS_DIR": str(models_dir)}


@pytest.mark.parametrize("args, raw", CASES, ids=NAMES)
def test_flags_on_either_side_http_and_a_file_give_the_same_plan_and_id(
    cli, models_env, model_server, tmp_path, args, raw
):
    before = report_of(cli(*FLAGS, *args, env=models_env))
    after = report_of(cli(*args, *FLAGS, env=models_env))
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(raw))
    applied = report_of(cli(*FLAGS, "apply", str(file), env=models_env))
    with model_server.client() as http:
        reply = http.post("/admin/plans", json={"plan": raw, "dry_run": True})
    over_http = json.loads(reply.text.splitlines()[-1])

    assert reply.status_code == 200, reply.text
    assert over_http["event"] == "result"
    assert identity(before) == identity(after) == identity(over_http["data"])
    assert identity(applied) == identity(before)


def test_a_saved_report_is_a_plan_file_too(cli, models_env, tmp_path):
    report = report_of(cli(*FLAGS, "models", "load", "smollm2-135m", env=models_env))
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report))

    assert identity(report_of(cli(*FLAGS, "apply", str(file), env=models_env))) == identity(report)


def test_transport_flags_do_not_change_the_id(cli, models_env):
    plain = report_of(cli(*FLAGS, "chat", "hello", env=models_env))
    moved = report_of(
        cli(*FLAGS, "chat", "hello", "--no-stream", "--server", "http://127.0.0.1:9", "-q", env=models_env)
    )

    assert moved["plan_id"] == plain["plan_id"]


PROBE = """
import json, sys
from localllm.__main__ import main
code = main(sys.argv[1:])
heavy = ["litestar", "llama_cpp", "httpx", "jinja2", "rich", "uvicorn", "asyncio", "numpy"]
print(json.dumps([name for name in heavy if name in sys.modules]), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("args", [args for args, _ in CASES], ids=NAMES)
def test_a_dry_run_imports_neither_the_server_nor_llama_cpp(clean_env, models_env, args):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *FLAGS, *args], env=clean_env | models_env, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_a_dry_run_writes_no_file(cli, models_env, clean_env):
    home = Path(clean_env["HOME"])
    for args, _ in CASES:
        report_of(cli(*FLAGS, *args, env=models_env))

    assert [path for path in home.rglob("*") if path.is_file()] == []
