"""What a load is said to take before it happens, and what it took; what adapters and profiles do to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Cli, StartServer
from fixtures.tiny_models import write_gemma, write_llama, write_lora


@pytest.fixture
def folder(tmp_path: Path) -> dict[str, str]:
    """An environment whose models folder holds a small llama, a gemma, and an adapter for the llama."""
    models = tmp_path / "models"
    write_llama(models / "tiny.gguf")
    write_gemma(models / "other.gguf")
    write_lora(models / "style.gguf")
    return {"LOCALLLM_MODELS_DIR": str(models)}


def report(cli: Cli, env: dict[str, str], *args: str, code: int = 0) -> dict[str, Any]:
    done = cli("--dry-run", "--output", "json", *args, env=env)
    assert done.code == code, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_a_load_that_does_not_fit_is_a_no_with_plans_that_would(cli: Cli, folder: dict[str, str]) -> None:
    told = report(cli, folder, "models", "load", "tiny", "--n-ctx", "2147483647", code=1)
    memory = told["resolved"]["memory"]

    assert (memory["fits"], memory["devices"][0]["fits"]) == (False, False)
    assert any("n_ctx" in each["changes"] for each in memory["alternatives"])
    assert any(warning.startswith("would fail here: `tiny` needs") for warning in told["warnings"])
    said = cli("--dry-run", "models", "load", "tiny", "--n-ctx", "2147483647", env=folder).out.splitlines()
    assert any(line.startswith("memory of CPU: ") and ", does not fit (weights " in line for line in said)
    assert any(line.startswith("would fit: `--n-ctx ") for line in said)
    assert any(line.startswith("warning: would fail here: `tiny` needs") and "would fit)" in line for line in said)
    detailed = cli("--dry-run", "--detailed-exitcode", "models", "load", "tiny", "--n-ctx", "2147483647", env=folder)
    assert detailed.code == 1


def test_every_effective_value_has_an_origin_and_a_fate(cli: Cli, folder: dict[str, str]) -> None:
    flags = ["--profile", "turbo4b", "--tensor-split", "3,1", "--adapter", "style=0.5", "--gpu-layers", "2"]
    told = report(cli, folder | {"LOCALLLM_N_SLOTS": "3"}, "models", "load", "tiny", *flags)
    rows = told["provenance"]

    assert rows["profile"] == {"value": "turbo4b", "origin": "plan", "fate": "applied"}
    assert (rows["n_ubatch"]["value"], rows["n_ubatch"]["origin"]) == (128, "profile turbo4b")
    assert rows["n_ctx"]["fate"] == "approximated"
    assert "made for 512 tokens" in rows["n_ctx"]["reason"]
    assert rows["n_slots"] == {"value": 3, "origin": "env LOCALLLM_N_SLOTS", "fate": "applied"}
    assert (rows["tensor_split"]["value"], rows["tensor_split"]["fate"]) == ([], "ignored")
    assert "no GPU" in rows["tensor_split"]["reason"]
    assert (rows["gpu_layers"]["value"], rows["gpu_layers"]["fate"]) == (0, "ignored")
    assert (rows["adapters"]["value"], rows["adapters"]["origin"]) == ([["style", 0.5]], "plan")
    assert rows["rope_freq_base"]["origin"] == "GGUF"
    assert told["resolved"]["memory"]["devices"][0]["adapter_bytes"] > 0
    assert [each["path"] for each in told["preconditions"] if each["kind"] == "file"] == ["tiny.gguf", "style.gguf"]


@pytest.mark.parametrize(
    ("flags", "name", "words"),
    [
        (["--cache-type-k", "q8_0"], "cache_type_k", "attention heads are 16 wide"),
        (["--adapter", "tiny"], "adapters", "`tiny` is not a LoRA adapter"),
        (["--adapter", "style=much"], "adapters", "does not say how strongly"),
        (["--adapter", "style", "--adapter", "style=2"], "adapters", "named twice"),
        (["--adapter", "stile"], "adapters", "there is no adapter `stile`"),
    ],
)
def test_what_cannot_be_is_rejected_in_the_report(
    cli: Cli, folder: dict[str, str], flags: list[str], name: str, words: str
) -> None:
    told = report(cli, folder, "models", "load", "tiny", *flags)

    assert told["provenance"][name]["fate"] == "rejected"
    assert words in told["provenance"][name]["reason"]
    assert any(words in warning for warning in told["warnings"])


def test_an_adapter_of_another_architecture_is_rejected(cli: Cli, folder: dict[str, str]) -> None:
    told = report(cli, folder, "models", "load", "other", "--adapter", "style")

    assert "made for `llama`, and `other` is `gemma3`" in told["provenance"]["adapters"]["reason"]


def test_a_dry_run_of_serve_says_what_its_model_takes(cli: Cli, folder: dict[str, str]) -> None:
    told = report(cli, folder, "serve", "--model", "tiny", "--adapter", "style", "--n-ctx", "256")

    assert told["resolved"]["model_id"] == "tiny"
    assert told["resolved"]["memory"]["fits"]
    assert told["provenance"]["adapters"]["value"] == [["style", 1.0]]
    assert told["provenance"]["n_ctx"] == {"value": 256, "origin": "plan", "fate": "applied"}


def test_a_server_applies_tells_and_measures_what_its_plan_asks_for(
    cli: Cli, server: StartServer, folder: dict[str, str]
) -> None:
    flags = ["--model", "tiny", "--adapter", "style=0.5", "--profile", "single", "--no-mmap", "--rope-freq-base", "5e4"]
    running = server(*flags, env=folder)
    env = running.env | folder
    (model,) = json.loads(cli("--output", "json", "status", env=env).out)["models"]
    applied, origins = model["applied"], model["origins"]

    assert (applied["adapters"], origins["adapters"]) == ([["style", 0.5]], "plan")
    assert (applied["n_batch"], origins["n_batch"]) == (256, "profile single")
    assert (applied["mmap"], applied["rope_freq_base"]) == (False, 50_000.0)
    assert not {"path", "adapter_paths"} & model["spec"].keys()
    shown = json.loads(cli("--output", "json", "models", "show", "tiny", env=env).out)
    assert shown["measured"]["measured_bytes"] > 0
    assert abs(shown["measured"]["estimate_error"]) < 0.25
    same = ["--adapter", "style=0.5", "--flash-attention", "auto", "--gpu-layers", "auto"]
    again = json.loads(cli("--output", "json", "models", "load", "tiny", *same, env=env).out)
    assert (again["changed"], again["warnings"]) == (False, model["warnings"])
    other = json.loads(cli("--output", "json", "models", "load", "tiny", "--n-ctx", "64", env=env).out)
    assert "another n_ctx" in other["warnings"][-1]


def test_what_a_default_load_took_is_kept_on_the_same_base_as_its_estimate(
    cli: Cli, server: StartServer, folder: dict[str, str]
) -> None:
    running = server("--model", "tiny", env=folder)
    env = running.env | folder
    (model,) = json.loads(cli("--output", "json", "status", env=env).out)["models"]
    kept = json.loads(cli("--output", "json", "models", "show", "tiny", env=env).out)["measured"]
    applied, memory = model["applied"], model["memory"]

    assert applied["mmap"] is True
    assert kept["mapped_bytes"] > 0
    assert kept["measured_bytes"] + kept["mapped_bytes"] == memory["total_bytes"]
    assert kept["estimate_error"] == pytest.approx(kept["estimated_bytes"] / kept["measured_bytes"] - 1, abs=1e-4)
    weights = sum(device["weights_bytes"] for device in memory["estimate"]["devices"])
    assert kept["estimated_bytes"] == memory["estimate"]["needed_bytes"] - weights
    assert " of weights mapped from the file, estimated " in cli("models", "show", "tiny", env=env).out
    assert (applied["n_ctx"], applied["n_ctx_pool"]) == (512, 512 * applied["n_slots"])
    assert f" {applied['n_ctx']}    {applied['n_ctx_pool']}  " in cli("status", env=env).out


@pytest.mark.parametrize("command", [["models", "load", "tiny"], ["serve"], ["serve", "--model", "tiny"]])
@pytest.mark.parametrize("dry_run", [["--dry-run"], []])
def test_an_unknown_profile_is_bad_input_before_anything_starts(
    cli: Cli, folder: dict[str, str], command: list[str], dry_run: list[str]
) -> None:
    if command[0] == "models" and not dry_run:
        command = ["serve"]  # without a server there is nobody to say it
    done = cli(*dry_run, *command, "--profile", "turbo", env=folder)

    assert done.code == 2
    assert "there is no profile `turbo`" in done.err
    assert "hint: did you mean `turbo4b`?" in done.err


def test_an_unknown_profile_and_a_load_too_large_are_refused_by_the_server(
    cli: Cli, server: StartServer, folder: dict[str, str]
) -> None:
    running = server(env=folder)
    env = running.env | folder
    unknown = cli("--output", "json", "models", "load", "tiny", "--profile", "turbo", env=env)
    huge = cli("--output", "json", "models", "load", "tiny", "--n-ctx", "2147483647", env=env)

    assert unknown.code == 2
    assert json.loads(unknown.out)["error"]["hint"] == "did you mean `turbo4b`?"
    assert huge.code == 6
    error = json.loads(huge.out)["error"]
    assert "would fit" in error["hint"]
    assert error["data"]["alternatives"]
    assert cli("models", "load", "tiny", env=env).code == 0


def test_metrics_count_a_request_and_need_the_key(server: StartServer, cli: Cli) -> None:
    running = server("--backend", "echo", "--model", "echo")
    with running.client() as http:
        body = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        answer = http.get("/metrics")
        said = cli("status", env=running.env).out

        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'localllm_requests_done_total{model="echo"} 1\n' in answer.text
        assert 'localllm_engine_steps_total{model="echo"}' in answer.text
        assert "echo: 1 request, " in said
        cli("auth", "enable", env=running.env)
        assert http.get("/metrics").status_code == 401
    assert httpx.post(f"{running.url}/metrics", trust_env=False).status_code in (401, 405)
