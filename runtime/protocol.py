"""What the executors see of the runtime: a seam that `LocalRuntime` (pool.py) fills."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from .residency import Admission
from .types import GenerateRequest, LoadedModel, LoadSpec, Output

LoadProgress = Callable[[str, float], None]
"""Called with a stage (`start`, `weights`, `context`, `warmup`) and a fraction 0..1 while a model loads."""


class Runtime(Protocol):
    """Loaded models and the requests they answer. All methods belong to one event loop."""

    async def load(
        self, spec: LoadSpec, on_progress: LoadProgress | None = None, *, queued: bool = False
    ) -> LoadedModel:
        """Load the model, or join the load that runs, or return the loaded one.

        `queued` says that a request waits for it: it takes a place in the model's queue meanwhile, and progress is told
        only once it has one. Raises ModelLoadFailed, OutOfMemory, CoolingDown; for a request QueueFull.
        """
        ...

    async def unload(self, model_id: str, *, force: bool = False) -> None:
        """End the model's worker.

        Raises InUse under running requests without `force`, ModelNotFound where it is not loaded.
        """
        ...

    def admission(self, spec: LoadSpec) -> Admission:
        """Which models a load of `spec` would unload right now, or why that would not do. From any thread; may read
        the header."""
        ...

    def loaded(self) -> list[LoadedModel]:
        """Every model with a worker, in order of loading, from what is known without asking a worker."""
        ...

    async def status(self) -> list[LoadedModel]:
        """Like `loaded`, with slots and metrics asked from the workers (bounded in time)."""
        ...

    def generate(self, model_id: str, request: GenerateRequest) -> AsyncIterator[Output]:
        """Answer a request on a loaded model. Closing the iterator cancels the request within one engine step.

        Raises a LocalLLMError from the first `anext` where the request cannot start.
        """
        ...

    async def aclose(self, drain_s: float = 0.0) -> None:
        """Take no more work, give running requests `drain_s` seconds, end every worker."""
        ...
