"""`CommandPlan`, the closed union of plan classes.

It exists for type checkers: at run time a call imports only its own noun's classes, so the name is `Any` there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .plans.apply import Apply
    from .plans.auth import AuthDisable, AuthEnable, AuthStatus
    from .plans.bench import BenchLatency, BenchThroughput
    from .plans.chat import Chat
    from .plans.complete import Complete
    from .plans.config import ConfigGet, ConfigList, ConfigSet, ConfigUnset
    from .plans.doctor import Doctor
    from .plans.inspect import Explain, PlanDiff, PlanId, PlanValidate, Schema
    from .plans.ledger import PlanLog, PlanUndo
    from .plans.logs import Logs
    from .plans.models import ModelsList, ModelsLoad, ModelsPull, ModelsScan, ModelsShow, ModelsUnload
    from .plans.replay import PlanLock, Replay
    from .plans.serve import Serve
    from .plans.status import Status
    from .plans.version import Version

    CommandPlan = (
        Status
        | ModelsScan
        | ModelsList
        | ModelsShow
        | ModelsLoad
        | ModelsUnload
        | ModelsPull
        | AuthEnable
        | AuthDisable
        | AuthStatus
        | ConfigGet
        | ConfigSet
        | ConfigUnset
        | ConfigList
        | BenchLatency
        | BenchThroughput
        | Logs
        | Doctor
        | Chat
        | Complete
        | Serve
        | Apply
        | Explain
        | PlanValidate
        | PlanDiff
        | PlanId
        | Replay
        | PlanLock
        | PlanLog
        | PlanUndo
        | Schema
        | Version
    )
else:
    CommandPlan = Any
