"""What an executor may use: the one bag of state, built once by `__main__` or by the server."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..planner.settings import ResolvedSettings

if TYPE_CHECKING:
    from ..errors import LocalLLMError
    from ..planner.plans.serve import Serve
    from ..runtime.models.catalog import Catalog
    from ..runtime.protocol import Runtime
    from ..runtime.types import BackendName
    from .events import Events
    from .playback import Playback
    from .recorder import Recorder

read_whole: ContextVar[bool] = ContextVar("read_whole", default=False)
"""Whether the events of this task's plan are read for their result only, so that an answer need not come in pieces."""

ServeFunction = Callable[["Serve", "Context"], "Events"]


@define(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class Context:
    """Settings, folders and the runtime of this process.

    `runtime` makes the runtime at its first use, so that a dry run and most commands never import it;
    `serve` is injected by `__main__`, so executors never import `api`. `on_server` is True inside the server:
    plans then run here, and are not sent on.
    """

    settings: ResolvedSettings
    dry_run: bool = False
    on_server: bool = False
    verbosity: int = 0
    serve: ServeFunction | None = None
    make_runtime: Callable[[Context], Runtime] | None = None
    backend: BackendName = "llama"
    """What computes the answers of models loaded here."""
    backend_options: dict[str, Any] = field(factory=dict)
    """`LoadSpec.options` of models loaded here."""
    default_model_id: str | None = None
    """The model `local-model` means in this process, once `serve --model` or `models load --make-default` said so."""
    catalog: Catalog | None = None
    """The last scan of the models folder, so that the next one reads only what has changed."""
    instance: str = ""
    """The running server's instance id; empty elsewhere."""
    on_worker_log: Callable[[str, str, str], None] | None = None
    """Takes what workers print: the model's id, a level and the line."""
    config_fault: LocalLLMError | None = None
    """What is wrong with the configuration, for the one command that runs all the same: `doctor`."""
    refresh: Callable[[], ResolvedSettings] | None = None
    """Reads the settings anew, for the steps of a replay after one that changed them."""
    inside_replay: bool = False
    """A replay runs the plan: it may not begin another one."""
    secrets: frozenset[str] = frozenset()
    """Values within the plan that runs which a server it is sent to must not keep."""
    recorder: Recorder | None = None
    """Keeps what this server answers, for `serve --record`."""
    playback: Playback | None = None
    """Answers in the place of executors, for `serve --playback`."""
    _runtime: Runtime | None = field(default=None, alias="_runtime")

    @property
    def runtime(self) -> Runtime:
        """The runtime, made at first use."""
        if self._runtime is None:
            if self.make_runtime is None:
                from ..runtime.pool import LocalRuntime
                from ..runtime.residency import Limits

                settings = self.settings
                limits = Limits(
                    queue_limit=settings.queue_size,
                    max_loaded=settings.max_loaded,
                    memory_budget_bytes=settings.memory_budget_bytes,
                    idle_ttl_s=settings.idle_ttl_s,
                )
                self._runtime = LocalRuntime(limits, on_log=self.on_worker_log)
            else:
                self._runtime = self.make_runtime(self)
        return self._runtime

    @property
    def models_dir(self) -> Path:
        return Path(self.settings.models_dir)

    async def aclose(self, drain_s: float = 0.0) -> None:
        """End what this process started."""
        if self._runtime is not None:
            await self._runtime.aclose(drain_s)
