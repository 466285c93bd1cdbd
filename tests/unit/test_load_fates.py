"""What becomes of a load parameter: applied, approximated, ignored with a reason, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields
from fixtures.tiny_models import write_llama, write_lora, write_mamba
from localllm.errors import BadInput
from localllm.planner.plans.loading import Loading
from localllm.runtime.models.choice import SETTABLE
from localllm.runtime.models.devices import Device
from localllm.runtime.models.gguf import GGUFHeader, read_header
from localllm.runtime.models.machine import CpuLimits
from localllm.runtime.models.parameters import LoadParameters, load_parameters
from localllm.runtime.types import LoadSpec

GIB = 1 << 30
CPU = CpuLimits(allowed=8, cores=8)


def machine(*gpus: str) -> list[Device]:
    """A roomy CPU and roomy GPUs of these names."""
    kinds = [("CPU", "cpu"), *((name, "gpu") for name in gpus)]
    return [
        Device(name=name, description="", type=kind, free_bytes=8 * GIB, total_bytes=8 * GIB)  # type: ignore[arg-type]
        for name, kind in kinds
    ]


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> GGUFHeader:
    """A llama of four layers."""
    return read_header(write_llama(tmp_path_factory.mktemp("models") / "tiny.gguf"))


def resolve(header: GGUFHeader, *gpus: str, **asked: Any) -> LoadParameters:
    return load_parameters(LoadSpec(model_id="tiny", path="tiny.gguf", **asked), [header], machine(*gpus), CPU)


def fate(found: LoadParameters, name: str) -> str:
    return found.fates.get(name, ("applied", ""))[0]


def test_every_load_parameter_of_a_plan_is_one_that_is_resolved() -> None:
    apart = {"profile", "chat_template", "pin"}
    names = {field.name for field in fields(Loading)}

    assert names - apart == set(SETTABLE)
    assert names | {"adapter_paths"} <= {field.name for field in fields(LoadSpec)}


@pytest.mark.parametrize(
    ("name", "value"), [("tensor_split", (3.0, 1.0)), ("split_mode", "none"), ("split_mode", "row"), ("main_gpu", 1)]
)
@pytest.mark.parametrize("gpus", [(), ("GPU0",)])
def test_a_split_without_a_second_gpu_is_ignored_and_said(
    header: GGUFHeader, gpus: tuple[str, ...], name: str, value: Any
) -> None:
    found = resolve(header, *gpus, **{name: value})

    assert fate(found, name) == "ignored"
    assert found.values[name] == {"tensor_split": (), "split_mode": "layer", "main_gpu": 0}[name]
    assert any(name in warning for warning in found.warnings)


def test_a_tensor_split_decides_how_many_layers_each_gpu_takes(header: GGUFHeader) -> None:
    found = resolve(header, "GPU0", "GPU1", tensor_split=(3.0, 2.0), gpu_layers="all")

    assert [device.layers for device in found.estimate.devices] == [0, 3, 2]
    assert (fate(found, "tensor_split"), found.origins["tensor_split"]) == ("applied", "flag")
    assert found.warnings == ()


def test_without_a_split_one_gpu_takes_all(header: GGUFHeader) -> None:
    found = resolve(header, "GPU0", "GPU1", split_mode="none", main_gpu=1, tensor_split=(1.0, 0.0))

    assert [device.layers for device in found.estimate.devices] == [0, 0, 5]
    assert fate(found, "tensor_split") == "ignored"


def test_rows_are_split_by_cuda_alone_and_by_layers_elsewhere(header: GGUFHeader) -> None:
    other, cuda = (resolve(header, f"{kind}0", f"{kind}1", split_mode="row") for kind in ("Vulkan", "CUDA"))

    assert (other.values["split_mode"], fate(other, "split_mode")) == ("layer", "approximated")
    assert (cuda.values["split_mode"], fate(cuda, "split_mode")) == ("row", "applied")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"tensor_split": (1.0, 1.0, 1.0)}, "3 numbers for 2 GPUs"),
        ({"tensor_split": (0.0, 0.0)}, "gives no GPU a share"),
        ({"split_mode": "none", "main_gpu": 2}, "there is no GPU 2"),
    ],
)
def test_a_split_over_gpus_that_do_not_exist_is_refused(header: GGUFHeader, asked: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        resolve(header, "GPU0", "GPU1", **asked)

    assert caught.value.param in asked
    assert "`GPU1`" in str(caught.value.hint)


def test_a_cache_in_main_memory_leaves_the_gpu_its_weights(header: GGUFHeader) -> None:
    kept = resolve(header, "GPU0", gpu_layers="all")
    moved = resolve(header, "GPU0", gpu_layers="all", kv_offload=False)

    assert [device.kv_bytes for device in moved.estimate.devices] == [kept.estimate.devices[1].kv_bytes, 0]
    assert moved.estimate.devices[1].weights_bytes == kept.estimate.devices[1].weights_bytes
    assert fate(resolve(header, kv_offload=False), "kv_offload") == "ignored"


def test_more_layers_than_there_are_is_approximated(header: GGUFHeader) -> None:
    found = resolve(header, "GPU0", gpu_layers=99)

    assert (found.values["gpu_layers"], fate(found, "gpu_layers")) == (5, "approximated")
    assert fate(resolve(header, "GPU0", gpu_layers="all"), "gpu_layers") == "applied"
    assert fate(resolve(header, gpu_layers=99), "gpu_layers") == "ignored"


@pytest.mark.parametrize("asked", [{}, {"gpu_layers": "auto"}])
def test_a_gpu_that_the_build_expects_and_does_not_find_is_said(header: GGUFHeader, asked: Any) -> None:
    spec = LoadSpec(model_id="tiny", path="tiny.gguf", **asked)
    missing = load_parameters(spec, [header], machine(), CPU, gpu_kinds=("cuda",))
    found = load_parameters(spec, [header], machine("CUDA0"), CPU, gpu_kinds=("cuda",))
    declined = load_parameters(evolve(spec, gpu_layers=0), [header], machine(), CPU, gpu_kinds=("cuda",))

    assert missing.warnings == ("llama.cpp is built for `cuda` but finds no GPU: all layers run on the CPU",)
    assert (found.warnings, declined.warnings, resolve(header, **asked).warnings) == ((), (), ())


def test_what_only_yarn_looks_at_is_ignored_without_it(header: GGUFHeader) -> None:
    linear = resolve(header, rope_freq_scale=0.5, yarn_beta_fast=16.0, yarn_orig_ctx=256, yarn_attn_factor=1.5)
    yarn = resolve(header, rope_scaling="yarn", yarn_beta_fast=16.0, yarn_orig_ctx=256)
    none = resolve(header, rope_scaling="none", rope_freq_scale=0.5, rope_freq_base=1e6)

    assert (fate(linear, "yarn_beta_fast"), fate(linear, "yarn_orig_ctx")) == ("ignored", "ignored")
    assert (fate(linear, "rope_freq_scale"), fate(linear, "yarn_attn_factor")) == ("applied", "applied")
    assert (yarn.values["yarn_beta_fast"], yarn.fates) == (16.0, {})
    assert (none.values["rope_freq_scale"], fate(none, "rope_freq_scale")) == (None, "ignored")
    assert none.values["rope_freq_base"] == 1e6


def test_a_model_without_positions_ignores_their_scaling(tmp_path: Path) -> None:
    found = resolve(read_header(write_mamba(tmp_path / "m.gguf")), rope_scaling="yarn", rope_freq_base=1e6)

    assert found.values["rope_scaling"] is None
    assert {fate(found, name) for name in ("rope_scaling", "rope_freq_base")} == {"ignored"}


def test_batches_are_no_larger_than_the_context(header: GGUFHeader) -> None:
    found = resolve(header, n_ctx=64, n_slots=1, n_batch=256)

    assert (found.values["n_batch"], found.values["n_ubatch"]) == (64, 64)
    assert (fate(found, "n_batch"), fate(found, "n_ubatch")) == ("approximated", "applied")


def test_quantised_values_need_flash_attention(tmp_path: Path, header: GGUFHeader) -> None:
    wide = evolve(
        header,
        metadata={
            **header.metadata,
            **dict.fromkeys(("llama.attention.key_length", "llama.attention.value_length"), 32),
        },
    )

    with pytest.raises(BadInput, match="without flash attention"):
        resolve(wide, cache_type_v="q8_0", flash_attention="off")
    assert resolve(wide, cache_type_k="q8_0", flash_attention="off").fates == {}


def grok_like(header: GGUFHeader) -> GGUFHeader:
    """The header as one of the architecture that llama.cpp never gives flash attention."""
    own = {name.replace("llama.", "grok."): value for name, value in header.metadata.items()}
    widths = dict.fromkeys(("grok.attention.key_length", "grok.attention.value_length"), 64)
    return evolve(header, metadata=own | {"general.architecture": "grok"} | widths)


def test_flash_attention_that_a_model_cannot_have_is_ignored_and_said(header: GGUFHeader) -> None:
    found = resolve(grok_like(header), flash_attention="on")

    assert (found.values["flash_attention"], fate(found, "flash_attention")) == ("off", "ignored")
    assert "no flash attention for `grok`" in found.fates["flash_attention"][1]
    assert found.warnings == ("`flash_attention` is ignored: llama.cpp has no flash attention for `grok`",)


@pytest.mark.parametrize("asked", [{}, {"flash_attention": "auto"}, {"flash_attention": "off"}])
def test_flash_attention_that_nobody_insists_on_is_left_out_silently(header: GGUFHeader, asked: Any) -> None:
    found = resolve(grok_like(header), **asked)

    assert (fate(found, "flash_attention"), found.warnings) == ("applied", ())


def test_a_model_that_llama_never_gives_flash_attention_is_reckoned_without_it(header: GGUFHeader) -> None:
    grok = grok_like(header)
    free, off = resolve(grok), resolve(grok, flash_attention="off")
    wanting = resolve(grok, n_ctx=1 << 24)

    assert grok.architecture == "grok"
    assert free.estimate.needed_bytes == off.estimate.needed_bytes > resolve(header).estimate.needed_bytes
    assert wanting.alternatives
    assert not any("cache_type_v" in each.changes for each in wanting.alternatives)
    with pytest.raises(BadInput, match="without flash attention") as caught:
        resolve(grok, cache_type_v="q8_0")
    assert caught.value.hint == "take `f16`"


def test_what_would_fit_needs_nothing_that_was_switched_off(header: GGUFHeader) -> None:
    wide = evolve(
        header,
        metadata={**header.metadata, "llama.attention.key_length": 64, "llama.attention.value_length": 64},
    )
    asked, free = (resolve(wide, n_ctx=1 << 24, **more) for more in ({"flash_attention": "off"}, {}))

    assert {"n_ctx"} in [set(each.changes) for each in asked.alternatives]
    assert not any("cache_type_v" in each.changes for each in asked.alternatives)
    assert any("cache_type_v" in each.changes for each in free.alternatives)


def test_more_threads_than_cpus_is_a_warning(header: GGUFHeader) -> None:
    assert "share 8 CPUs" in resolve(header, n_threads=9).warnings[0]
    assert resolve(header, n_threads=8).warnings == ()


def test_what_is_asked_for_keeps_the_origin_it_came_with(header: GGUFHeader) -> None:
    found = resolve(header, n_slots=3, profile="single", origins={"n_slots": "env LOCALLLM_N_SLOTS", "profile": "plan"})

    assert (found.origins["n_slots"], found.origins["profile"]) == ("env LOCALLLM_N_SLOTS", "plan")
    assert found.origins["n_batch"] == "profile single"


def test_a_value_equal_to_the_default_still_beats_the_profile(header: GGUFHeader) -> None:
    found = resolve(header, "GPU0", profile="cpu", gpu_layers="auto")

    assert (found.values["gpu_layers"], found.origins["gpu_layers"]) == (5, "fit")


def test_adapters_count_where_their_layers_lie(tmp_path: Path, header: GGUFHeader) -> None:
    adapter = read_header(write_lora(tmp_path / "lora.gguf"))
    spec = LoadSpec(model_id="tiny", path="", gpu_layers=3, adapters=(("lora", 0.5),), adapter_paths=("",))
    found = load_parameters(spec, [header], machine("GPU0"), CPU, adapters=[adapter])
    total = sum(n_bytes for *_, n_bytes in adapter.raw_tensors)

    assert [device.adapter_bytes for device in found.estimate.devices] == [total // 2, total // 2]
    assert (
        found.estimate.needed_bytes
        == load_parameters(
            evolve(spec, adapters=(), adapter_paths=()), [header], machine("GPU0"), CPU
        ).estimate.needed_bytes
        + total
    )
