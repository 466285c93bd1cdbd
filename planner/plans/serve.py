"""The plan of `localllm serve`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, option


@frozen(kw_only=True)
class Serve:
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
    profile: str | None = option(None, help="Named set of load parameters for that model")
    n_ctx: int | None = option(None, help="Context length of one request in tokens", ge=8, le=2**31 - 1)
    n_slots: int | None = option(None, help="How many requests run in one batch", ge=1, le=256)
    n_threads: int | None = option(None, help="CPU threads for decoding", ge=1, le=1024)
    insecure: bool = option(False, help="Allow an address other than loopback without an API key")
    backend: Literal["llama", "echo"] = option(
        "llama", help="What computes the answers; `echo` needs no model and repeats the prompt"
    )
    backend_options: dict[str, Any] = option(
        factory=dict, help="Extras of the backend, such as the echo backend's script and delays"
    )
    drain_s: float = option(10.0, help="Seconds that running requests get to finish at shutdown", ge=0, le=3600)
