"""The plan of `localllm serve`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, option, own_fields_first
from .loading import Loading

RESIDENCY = "Which models stay loaded"
RECORDING = "Record and play back"


@frozen(kw_only=True, field_transformer=own_fields_first)
class Serve(Loading):
    """Start the HTTP server in the foreground."""

    command: ClassVar[Literal["serve"]] = "serve"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "create", "network", "gpu", "exec")
    on_server: ClassVar[bool] = False

    host: str | None = option(
        None, help="Address to listen on; unset takes the setting `host` (127.0.0.1)", min_length=1
    )
    port: int | None = option(
        None, help="Port to listen on, 0 for a free one; unset takes the setting `port` (8484)", ge=0, le=65535
    )
    model: str | None = option(None, help="Model to load at the start and to offer as `local-model`", min_length=1)
    insecure: bool = option(False, help="Allow an address other than loopback without an API key")
    backend: Literal["llama", "echo"] = option(
        "llama", help="What computes the answers; `echo` needs no model and repeats the prompt"
    )
    backend_options: dict[str, Any] = option(
        factory=dict, help="Extras of the backend, such as the echo backend's script and delays"
    )
    max_loaded: int | None = option(
        None,
        help="Models that may be loaded at the same time; unset takes the setting `max_loaded`",
        ge=1,
        le=1000,
        group=RESIDENCY,
    )
    memory_budget_bytes: int | None = option(
        None,
        help="Memory all models together may take; unset takes the setting `memory_budget_bytes`",
        ge=1,
        le=2**53 - 1,
        group=RESIDENCY,
    )
    idle_ttl_s: int | None = option(
        None,
        help="Seconds after which an unused model is unloaded; unset takes the setting `idle_ttl_s`",
        ge=1,
        le=31_536_000,
        group=RESIDENCY,
    )
    record: str | None = option(
        None,
        help="Folder to write every answered request into, as plan files that replay and play back",
        min_length=1,
        client_path=True,
        group=RECORDING,
    )
    record_max_bytes: int = option(
        4_000_000, help="Size at which a new recording is begun", ge=10_000, le=15_000_000, group=RECORDING
    )
    record_max_files: int | None = option(
        None,
        help="Recordings the folder keeps, the oldest go first; unset keeps all",
        ge=1,
        le=1_000_000,
        group=RECORDING,
    )
    playback: tuple[str, ...] = option(
        (),
        help="Recording to answer from, without a model (may be given several times)",
        max_length=1000,
        item_min_length=1,
        client_path=True,
        group=RECORDING,
    )
    playback_pace: Literal["instant", "recorded"] = option(
        "instant", help="Play streams back at once, or with the pauses they had", group=RECORDING
    )
    drain_s: float = option(10.0, help="Seconds that running requests get to finish at shutdown", ge=0, le=3600)
