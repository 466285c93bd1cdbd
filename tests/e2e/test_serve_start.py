"""Where the server listens, and what it says when it can't."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from fixtures.tied import tied

if TYPE_CHECKING:
    from conftest import Cli, RunningServer


@pytest.mark.parametrize("model", [(), ("--model", "anything")])
def test_a_second_server_on_a_port_ends_at_once_and_says_why(
    cli: Cli, echo_server: RunningServer, model: tuple[str, ...]
) -> None:
    done = cli("serve", "--port", str(echo_server.port), *model)

    assert done.code == 5
    assert f"port {echo_server.port} on `127.0.0.1` is taken" in done.err
    assert "hint:" in done.err
    assert done.out == ""


def test_in_json_mode_the_refusal_is_the_document(cli: Cli, echo_server: RunningServer) -> None:
    done = cli("--output", "json", "serve", "--port", str(echo_server.port))

    assert json.loads(done.out)["error"]["code"] == "in_use"


def test_a_dry_run_binds_nothing_and_does_not_judge_the_port(cli: Cli, echo_server: RunningServer) -> None:
    done = cli("--dry-run", "--output", "json", "serve", "--port", str(echo_server.port))

    report = json.loads(done.out)
    assert done.code == 0
    assert "whether the port is free" in report["unknown"]
    assert report["resolved"]["port"] == echo_server.port


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--port", "70000"), 2, "port"),
        (("--port", "abc"), 2, "port"),
        (("--host", "999.1.1.1"), 2, "`999.1.1.1`"),
        (("--host", "192.0.2.1", "--insecure"), 2, "`192.0.2.1`"),
        (("--host", "0.0.0.0"), 4, "API key"),
    ],
)
def test_an_address_that_cannot_be_served_is_refused(
    cli: Cli, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = cli("serve", "--backend", "echo", *arguments)

    assert done.code == code
    assert words in done.err
    assert "Traceback" not in done.err


@contextmanager
def serving(env: dict[str, str], *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of the command line and the first line it prints; it is gone afterwards, whatever the test finds."""
    with subprocess.Popen(tied("-m", "localllm", *arguments), env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
            process.terminate()
            process.wait(100)
        finally:
            process.kill()


def status_at(url: str, path: str = "/health") -> int:
    return httpx.get(url + path, trust_env=False, timeout=60).status_code


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_free_port_is_printed(clean_env: dict[str, str], output: str) -> None:
    with serving(clean_env, "--output", output, "serve", "--backend", "echo", "--port", "0") as (process, line):
        url = json.loads(line)["data"]["url"] if output == "json" else line.split()[2]
        status = status_at(url)
        process.terminate()
        assert process.stdout is not None
        rest = process.stdout.read()

    assert status == 200
    assert process.returncode == 0
    assert output == "text" or all(json.loads(row) for row in rest.splitlines())


def test_an_applied_plan_of_a_server_runs_like_serve(clean_env: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "serve.json"
    file.write_text(json.dumps({"command": "serve", "backend": "echo", "port": 0}))
    with serving(clean_env, "apply", str(file)) as (process, line):
        assert process.stdout is not None
        process.stdout.close()  # nobody reads on
        time.sleep(1.2)  # longer than other commands go on then

        assert line.startswith("listening on http://127.0.0.1:")
        assert status_at(line.split()[2]) == 200
    assert process.returncode == 0


@pytest.mark.parametrize(("host", "addresses"), [("localhost", ["127.0.0.1", "[::1]"]), ("::1", ["[::1]"])])
def test_other_names_of_the_loopback_are_served(clean_env: dict[str, str], host: str, addresses: list[str]) -> None:
    with serving(clean_env, "serve", "--backend", "echo", "--port", "0", "--host", host) as (_, line):
        port = line.split()[2].rpartition(":")[2]

        assert [status_at(f"http://{address}:{port}") for address in addresses] == [200] * len(addresses)


def test_a_model_that_does_not_exist_leaves_a_server_that_is_not_ready(clean_env: dict[str, str]) -> None:
    with serving(clean_env, "serve", "--port", "0", "--model", "no-such-model") as (process, line):
        url = line.split()[2]
        assert process.stdout is not None
        told = process.stdout.readline()
        ready = httpx.get(f"{url}/ready", trust_env=False, timeout=60)

        assert "no-such-model" in told
        assert ready.status_code == 503
        assert ready.json()["status"] == "failed"
        assert ready.json()["error"]["code"] == "model_not_found"
        assert status_at(url) == 200
    assert process.returncode == 0
