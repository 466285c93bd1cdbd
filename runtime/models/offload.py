"""What runs on which GPU: how many layers, how several GPUs share them, and where the KV cache lies."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ...errors import BadInput
from .choice import Choice
from .device import Device, devices_to_offload_to
from .estimate import Sizing
from .shape import ModelShape

NO_GPU = "there is no GPU that llama.cpp can use"


def settle_offloading(
    choice: Choice, shape: ModelShape, sizing: Sizing, devices: Sequence[Device], gpu_kinds: Sequence[str] = ()
) -> tuple[bool, Sizing]:
    """Settle the split, the cache's place, and `gpu_layers` where it is a number or `all`.

    Says whether the layers are left to what fits. Raises BadInput for GPUs that do not exist.
    """
    gpus = devices_to_offload_to(devices)
    wanted = choice.take("gpu_layers", "auto")
    _settle_split(choice, gpus)
    choice.take("kv_offload", True)
    sizing = evolve(sizing, split=_shares(choice, gpus), kv_offload=bool(choice.values["kv_offload"]))
    if not gpus:
        if wanted not in ("auto", 0):
            choice.warnings.append(f"{NO_GPU}: all layers run on the CPU")
            choice.fates["gpu_layers"] = ("ignored", NO_GPU)
        elif wanted == "auto" and gpu_kinds:
            built_for = " and ".join(f"`{kind}`" for kind in gpu_kinds)
            choice.warnings.append(f"llama.cpp is built for {built_for} but finds no GPU: all layers run on the CPU")
        choice.put("gpu_layers", 0, "machine" if wanted == "auto" else choice.origins["gpu_layers"])
        if not choice.values["kv_offload"]:
            choice.ignore("kv_offload", True, NO_GPU)
        return False, sizing
    if wanted == "auto":
        return True, sizing
    most = shape.n_layers + 1
    layers = most if wanted == "all" else min(int(wanted), most)
    if wanted not in ("all", layers):
        choice.fates["gpu_layers"] = ("approximated", f"the model has {most} layers, the output layer included")
    choice.values["gpu_layers"] = layers
    return False, evolve(sizing, gpu_layers=layers)


def _settle_split(choice: Choice, gpus: Sequence[Device]) -> None:
    mode = choice.take("split_mode", "layer")
    shares = choice.take("tensor_split", (), "machine")
    main = choice.take("main_gpu", 0)
    if len(gpus) < 2:
        why = NO_GPU if not gpus else f"`{gpus[0].name}` is the only GPU"
        for name, fallback in (("split_mode", "layer"), ("tensor_split", ()), ("main_gpu", 0)):
            choice.ignore(name, fallback, why)
        return
    if mode == "row" and not all(gpu.name.startswith("CUDA") for gpu in gpus):
        mode = choice.approximate(
            "split_mode", "layer", f"only CUDA splits rows, and `{gpus[0].name}` is not such a GPU"
        )
    if mode == "none":
        if shares:
            choice.ignore("tensor_split", (), "with `split_mode none` one GPU takes all")
        if main >= len(gpus):
            raise _bad("main_gpu", f"there is no GPU {main}", gpus)
        return
    if mode == "layer":
        choice.ignore("main_gpu", 0, "only `split_mode none` and `row` have a main GPU")
    if shares and len(shares) != len(gpus):
        raise _bad("tensor_split", f"`tensor_split` has {len(shares)} numbers for {len(gpus)} GPUs", gpus)
    if shares and not sum(shares):
        raise _bad("tensor_split", "`tensor_split` gives no GPU a share", gpus)


def _shares(choice: Choice, gpus: Sequence[Device]) -> tuple[float, ...]:
    """Each GPU's part of the offloaded layers; empty where free memory decides."""
    if len(gpus) > 1 and choice.values["split_mode"] == "none":
        return tuple(float(number == choice.values["main_gpu"]) for number in range(len(gpus)))
    return tuple(choice.values["tensor_split"])


def _bad(name: str, message: str, gpus: Sequence[Device]) -> BadInput:
    listed = ", ".join(f"{number} is `{gpu.name}`" for number, gpu in enumerate(gpus))
    return BadInput(message, hint=listed, param=name)
