"""The program as a process: exit codes, standard streams, what a dry run imports and leaves alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = [sys.executable, "-m", "localllm"]


def shell(env, line):
    """A shell line with `$LOCALLLM` as the program."""
    full = env | {"LOCALLLM": f"{sys.executable} -m localllm"}
    return subprocess.run(["bash", "-c", line], env=full, capture_output=True, text=True, timeout=200, check=False)


def test_a_dry_run_imports_neither_server_nor_engine_nor_client(clean_env, model_path):
    program = """
import sys
from localllm.__main__ import main
code = main(["--dry-run", "--output", "json", "models", "load", "smollm2-135m"])
heavy = ("litestar", "uvicorn", "llama_cpp", "httpx", "jinja2", "rich", "numpy", "asyncio", "uvloop", "msgpack")
heavy += ("tomllib", "platformdirs", "secrets", "localllm.runtime.types", "localllm.executors.ledger")
sys.stderr.write(" ".join(name for name in heavy if name in sys.modules))
sys.exit(code)
"""
    env = clean_env | {"LOCALLLM_MODELS_DIR": str(model_path.parent)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert done.returncode == 0
    assert json.loads(done.stdout)["resolved"]["model_id"] == model_path.stem


def test_a_dry_run_leaves_the_home_folder_as_it_was(cli, tmp_path):
    for argv in (["models", "load", "m"], ["config", "set", "port", "1"], ["auth", "enable"], ["serve"]):
        assert cli("--dry-run", *argv).code == 0

    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []


def test_the_same_dry_run_prints_the_same_bytes_wherever_its_options_stand(cli):
    first = cli("--dry-run", "--output", "json", "models", "load", "m")
    others = [
        cli("models", "load", "m", "--dry-run", "--output", "json"),
        cli("models", "--dry-run", "load", "m", "--output=json"),
        cli("--output", "text", "models", "load", "m", "--dry-run", "--output", "json"),
    ]

    assert first.code == 0
    assert {(done.code, done.out) for done in others} == {(0, first.out)}


@pytest.mark.parametrize(
    "argv, code",
    [
        (["models", "laod"], 2),
        (["models", "load", "m", "--n-ctx", "1"], 2),
        (["--config", "/nonexistent.toml", "models", "list"], 3),
        (["--server", "not a url", "status"], 2),
        (["chat", "--messages", "{"], 2),
    ],
)
def test_an_error_is_one_json_document_with_the_exit_code_of_text_mode(cli, argv, code):
    as_json, as_text = cli("--output", "json", *argv), cli(*argv)

    error = json.loads(as_json.out)["error"]
    assert (as_json.code, as_text.code) == (code, code)
    assert error["exit_code"] == code
    assert error["message"]
    assert as_text.out == ""
    assert as_text.err.startswith("error: ")


def test_an_unknown_output_format_is_a_usage_error(cli):
    done = cli("--output", "yaml", "models", "list")

    assert (done.code, done.out) == (2, "")
    assert "`yaml` is not one of `text`, `json`" in done.err


def test_detailed_exit_code_tells_whether_a_plan_would_change_something(cli):
    assert cli("--dry-run", "--detailed-exitcode", "config", "set", "port", "1").code == 10
    assert cli("--dry-run", "--detailed-exitcode", "models", "scan").code == 0


def test_version_and_help_print_and_succeed(cli):
    assert cli("--version").out.startswith("localllm 0.")
    assert json.loads(cli("--version", "--output", "json").out)["version"].startswith("0.")
    assert cli().out == cli("--help").out
    assert "Usage: localllm models load" in json.loads(cli("models", "load", "--help", "--output", "json").out)["help"]


def test_a_closed_pipe_is_silent(clean_env):
    done = shell(clean_env, "set -o pipefail; $LOCALLLM --help | true; echo $?")

    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")


def test_a_full_or_closed_standard_output_is_one_line_and_a_failure(clean_env):
    for line in ("$LOCALLLM --version >&-", "$LOCALLLM --version > /dev/full", "$LOCALLLM models scan > /dev/full"):
        done = shell(clean_env, line)

        assert done.returncode == 6
        assert done.stderr.startswith("error: standard output ")
        assert done.stderr.count("\n") == 1


def test_closed_standard_input_and_error_are_no_fault(clean_env):
    done = shell(clean_env, "$LOCALLLM --dry-run --output json models load m <&- 2>&-")

    assert done.returncode == 0
    assert json.loads(done.stdout)["plan"]["model"] == "m"


def test_a_bug_is_one_line_for_people_and_a_traceback_for_the_log(clean_env, tmp_path):
    program = """
import sys
from localllm.executors import dispatch
def fail(*_):
    raise ZeroDivisionError
dispatch.executor_of = fail
from localllm.__main__ import main
sys.exit(main(["--output", "json", "--state-dir", sys.argv[1], "doctor"]))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "state")]
    done = subprocess.run(command, env=clean_env, capture_output=True, text=True, check=False)
    error = json.loads(done.stdout)["error"]

    assert done.returncode == 70
    assert error["message"] == "unexpected ZeroDivisionError"
    assert "Traceback" not in done.stderr
    assert "ZeroDivisionError" in (tmp_path / "state/log/crash.log").read_text()


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_running_command_without_a_traceback(clean_env, tmp_path, number, code):
    log = tmp_path / "state/log/server.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"time": "2030-01-01T00:00:00Z", "level": "info", "message": "started"}\n')
    command = [*PROGRAM, "--state-dir", str(tmp_path / "state"), "logs", "--follow"]
    with subprocess.Popen(command, env=clean_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "started" in process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=100)

    assert process.returncode == code
    assert "Traceback" not in err


def test_ctrl_c_before_the_command_line_is_read_leaves_no_traceback_either(clean_env):
    program = (
        "import sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'localllm.planner.argv':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from localllm.__main__ import main\n"
        "sys.exit(main(['version']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=clean_env, capture_output=True, text=True, timeout=200)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_a_follower_ends_when_its_reader_has_gone(clean_env, tmp_path):
    log = tmp_path / "state/log/server.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"time": "2030-01-01T00:00:00Z", "level": "info", "message": "started"}\n')
    began = time.monotonic()
    done = shell(clean_env, f"$LOCALLLM --state-dir {tmp_path}/state logs -f | head -1")

    assert "started" in done.stdout
    assert done.stderr == ""
    assert time.monotonic() - began < 60


def test_a_prompt_is_read_from_a_pipe(cli):
    done = cli("--dry-run", "--output", "json", "chat", stdin="from a pipe\n")

    assert json.loads(done.out)["plan"]["messages"][0]["content"] == "from a pipe"
    assert cli("chat", env={"PATH": os.environ["PATH"]}).code == 2
