"""Every documented load parameter reaches llama.cpp's parameter structs, and is reported by what they held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from attrs import define, fields, frozen
from fixtures.tiny_models import write_llama, write_lora
from localllm.planner.plans.loading import Loading
from localllm.runtime.backend import open_backend
from localllm.runtime.backend.llama_params import what_failed
from localllm.runtime.types import LoadSpec


@frozen
class Proof:
    """A value to ask for, and what llama.cpp's struct must hold then."""

    value: Any
    struct: str
    field: str
    held: Any


PROOFS = {
    "n_ctx": Proof(256, "context", "n_ctx", 256),
    "n_slots": Proof(3, "context", "n_seq_max", 3 + 56),
    "n_batch": Proof(96, "context", "n_batch", 96),
    "n_ubatch": Proof(48, "context", "n_ubatch", 48),
    "n_threads": Proof(1, "context", "n_threads", 1),
    "n_threads_batch": Proof(3, "context", "n_threads_batch", 3),
    "cache_type_k": Proof("bf16", "context", "type_k", 30),
    "cache_type_v": Proof("f32", "context", "type_v", 0),
    "flash_attention": Proof("off", "context", "flash_attn_type", 0),
    "kv_offload": Proof(False, "context", "offload_kqv", False),
    "rope_scaling": Proof("yarn", "context", "rope_scaling_type", 2),
    "rope_freq_base": Proof(50_000.0, "context", "rope_freq_base", 50_000.0),
    "rope_freq_scale": Proof(0.5, "context", "rope_freq_scale", 0.5),
    "yarn_orig_ctx": Proof(128, "context", "yarn_orig_ctx", 128),
    "yarn_ext_factor": Proof(0.75, "context", "yarn_ext_factor", 0.75),
    "yarn_attn_factor": Proof(1.25, "context", "yarn_attn_factor", 1.25),
    "yarn_beta_fast": Proof(16.0, "context", "yarn_beta_fast", 16.0),
    "yarn_beta_slow": Proof(2.0, "context", "yarn_beta_slow", 2.0),
    "mmap": Proof(False, "model", "load_mode", 0),
    "mlock": Proof(True, "model", "load_mode", 3),
}
OTHERWISE = {
    "profile": "it only sets others",
    "chat_template": "it is ours: llama.cpp renders no template",
    "pin": "it is the pool's",
    "adapters": "a call of its own, below",
    "gpu_layers": "needs a second device: test_second_device",
    "split_mode": "needs two devices: test_second_device",
    "tensor_split": "needs two devices: test_second_device",
    "main_gpu": "needs two devices: test_second_device",
}
WITH = {name: {"rope_scaling": "yarn"} for name in ("yarn_orig_ctx", "yarn_beta_fast", "yarn_beta_slow")}
NEEDS_GPU = {"kv_offload"}


@define
class Structs:
    """What was handed to llama.cpp at the last load; the calls themselves go through."""

    model: dict[str, Any]
    context: dict[str, Any]
    adapters: list[float]


@pytest.fixture
def structs(monkeypatch: pytest.MonkeyPatch) -> Structs:
    """Listens to the calls into the library."""
    seen = Structs({}, {}, [])
    load, open_context, set_adapters = (
        llama_cpp.llama_model_load_from_file,
        llama_cpp.llama_init_from_model,
        llama_cpp.llama_set_adapters_lora,
    )

    def values(struct: Any) -> dict[str, Any]:
        return {name: getattr(struct, name) for name, _type in struct._fields_}

    def on_load(path: bytes, params: Any) -> Any:
        seen.model = values(params)
        return load(path, params)

    def on_context(model: Any, params: Any) -> Any:
        seen.context = values(params)
        return open_context(model, params)

    def on_adapters(context: Any, handles: Any, count: int, scales: Any) -> int:
        seen.adapters = list(scales[:count])
        return int(set_adapters(context, handles, count, scales))

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", on_load)
    monkeypatch.setattr(llama_cpp, "llama_init_from_model", on_context)
    monkeypatch.setattr(llama_cpp, "llama_set_adapters_lora", on_adapters)
    return seen


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def load(path: Path, **asked: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """What a load with these parameters reports: the applied values and their origins."""
    backend = open_backend(LoadSpec(model_id="tiny", path=str(path), **{"n_ctx": 128, "n_slots": 1, **asked}))
    backend.close()
    return backend.info.applied, backend.info.origins


def test_every_documented_parameter_is_proved_somewhere() -> None:
    assert {field.name for field in fields(Loading)} == PROOFS.keys() | OTHERWISE.keys()


@pytest.mark.parametrize("name", sorted(PROOFS.keys() - NEEDS_GPU))
def test_a_parameter_reaches_the_struct_and_is_reported(tiny: Path, structs: Structs, name: str) -> None:
    proof = PROOFS[name]
    applied, origins = load(tiny, **WITH.get(name, {}), **{name: proof.value})
    held = getattr(structs, proof.struct)[proof.field]

    assert held == pytest.approx(proof.held) if isinstance(proof.held, float) else held == proof.held
    assert (applied[name], origins[name]) == (proof.value, "flag")


@pytest.mark.parametrize("name", sorted(PROOFS.keys() - NEEDS_GPU))
def test_what_nobody_asked_for_is_something_else(tiny: Path, structs: Structs, name: str) -> None:
    asked = {"n_ctx": {"n_ctx": None}, "n_slots": {"n_slots": None}}.get(name, {})
    applied, origins = load(tiny, **asked)

    assert applied[name] != PROOFS[name].value
    assert origins[name] != "flag"


def test_attention_that_is_left_to_llama_is_reported_as_it_was_settled(tiny: Path) -> None:
    assert load(tiny, flash_attention="auto")[0]["flash_attention"] == "on"


def test_a_lock_that_the_system_refuses_is_said() -> None:
    line = "warning: failed to mlock 1073741824-byte buffer (after previously locking 0 bytes): Cannot allocate memory"

    assert "`ulimit -l`" in what_failed(["load_tensors: done", line])[0]
    assert what_failed(["load_tensors: done"]) == ()


def test_adapters_are_set_with_their_scales(tiny: Path, structs: Structs, tmp_path: Path) -> None:
    paths = [str(write_lora(tmp_path / f"{name}.gguf")) for name in ("a", "b")]
    applied, origins = load(tiny, adapters=(("a", 0.5), ("b", -1.0)), adapter_paths=tuple(paths))

    assert structs.adapters == [0.5, -1.0]
    assert (applied["adapters"], origins["adapters"]) == ((("a", 0.5), ("b", -1.0)), "flag")


def test_the_strict_lane_gets_the_same_parameters(tiny: Path, structs: Structs, tmp_path: Path) -> None:
    adapter = write_lora(tmp_path / "a.gguf")
    spec = LoadSpec(
        model_id="tiny",
        path=str(tiny),
        n_ctx=128,
        n_slots=2,
        rope_freq_base=50_000.0,
        cache_type_k="f32",
        n_threads=1,
        adapters=(("a", 0.5),),
        adapter_paths=(str(adapter),),
    )
    backend = open_backend(spec)
    own, structs.adapters = dict(structs.context), []
    lane = backend.open_lane()
    lane.close()
    backend.close()
    apart = ("n_ctx", "n_seq_max", "cb_eval", "abort_callback", "samplers", "ctx_other")

    assert {name for name, value in structs.context.items() if value != own[name]} <= set(apart)
    assert structs.adapters == [0.5]
