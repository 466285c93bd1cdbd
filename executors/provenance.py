"""Where each effective load parameter comes from, as far as that is known before the load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..planner.plans.models import ModelsLoad
    from ..runtime.models.catalog import Entry
    from .context import Context

DEFAULT_N_CTX = 8192
FROM_SETTINGS = ("profile", "n_ctx", "n_slots", "n_threads")


def load_provenance(plan: ModelsLoad, ctx: Context, entry: Entry | None) -> dict[str, dict[str, Any]]:
    """The parameters whose value is not the plan's own: from the settings, the profile, the file or a default.

    What only the loading process can tell (memory, devices, the cgroup) is left to the load's own report.
    """
    out: dict[str, dict[str, Any]] = {}
    for name in FROM_SETTINGS:
        value = getattr(ctx.settings, name)
        if getattr(plan, name) is None and value is not None:
            out[name] = {"value": value, "origin": ctx.settings.origins[name], "fate": "applied"}
    profile = plan.profile or ctx.settings.profile
    for name, value in _profile_values(profile).items():
        if getattr(plan, name, None) is None and name not in out:
            out[name] = {"value": value, "origin": f"profile {profile}", "fate": "applied"}
    n_ctx = plan.n_ctx or out.get("n_ctx", {}).get("value")
    trained = None if entry is None else entry.context_length
    if n_ctx is None:
        if trained is not None and trained < DEFAULT_N_CTX:
            out["n_ctx"] = {"value": trained, "origin": "GGUF", "fate": "applied"}
        else:
            out["n_ctx"] = {"value": DEFAULT_N_CTX, "origin": "default", "fate": "applied"}
    return out


def _profile_values(name: str | None) -> dict[str, Any]:
    return {}
