"""A plan's other doors in words that can be pasted: a command line, `curl`, and Python."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pprint import pformat
from typing import Any

from attrs import frozen

from ..errors import Unsupported
from .codec import dump_plan
from .fields import default_of
from .plans import plan_class
from .spell import argv_of

TYPED_COMMANDS = {"chat": "/v1/chat/completions", "complete": "/v1/completions"}
"""Commands that have an endpoint of their own, which other programs know."""
NOT_THERE = frozenset(
    {"show_prompt", "response_format", "grammar", "regex", "choice", "json_whitespace", "samplers", "enable_thinking"}
)
"""Fields that such an endpoint spells in its own way; a plan that sets one goes through `/admin/plans`."""
KEY = "LOCALLLM_API_KEY"


@frozen(kw_only=True)
class HttpRequest:
    """The request that means a plan."""

    path: str
    body: dict[str, Any]
    method: str = "POST"


def short(plan: Any) -> dict[str, Any]:
    """A plan as JSON without what is a default anyway; `load_plan` fills it in again."""
    cls = plan_class(plan.command)
    import attrs

    defaults = {item.name: default_of(item) for item in attrs.fields(cls)}
    dumped = dump_plan(plan)
    kept = {name: value for name, value in dumped.items() if name == "command" or getattr(plan, name) != defaults[name]}
    return {name: _bare(value) if name == "messages" else value for name, value in kept.items()}


def command_line(raw: Mapping[str, Any]) -> str:
    """The plan as one shell line. Raises Unsupported where a field has no flag."""
    return shlex.join(["localllm", *argv_of(raw)])


def http_request(plan: Any) -> HttpRequest | None:
    """The request that means the plan; None for what only the command line may do."""
    if not plan.on_server:
        return None
    raw = short(plan)
    path = TYPED_COMMANDS.get(plan.command)
    if path is None or not NOT_THERE.isdisjoint(raw):
        return HttpRequest(path="/admin/plans", body={"plan": raw})
    body = {name: value for name, value in raw.items() if name != "command"}
    if plan.command == "complete":
        # without a limit the endpoint takes OpenAI's, which is 16; -1 is its word for none
        body = {"prompt": body.pop("prompts"), "max_tokens": -1, **body}
    return HttpRequest(path=path, body={"model": plan.model, **body})


def curl_of(request: HttpRequest, server: str) -> str:
    """The request as a `curl` command of several lines; the key comes from the environment."""
    parts = [
        f"curl {shlex.quote(server + request.path)}",
        f'-H "Authorization: Bearer ${KEY}"',
        "-H 'Content-Type: application/json'",
        f"-d {shlex.quote(json.dumps(request.body, ensure_ascii=False))}",
    ]
    return " \\\n  ".join(parts)


def python_of(plan: Any, server: str) -> str:
    """The plan as a small Python program: over HTTP where a server may run it, else by the command line."""
    request = http_request(plan)
    if request is None:
        return _python_by_command_line(plan)
    return "\n".join(
        [
            "import os",
            "",
            "import httpx",
            "",
            "answer = httpx.post(",
            f"    {server + request.path!r},",
            f'    headers={{"Authorization": f"Bearer {{os.environ.get({KEY!r}, \'\')}}"}},',
            f"    json={_literal(request.body, 9)},",
            "    timeout=None,",
            ")",
            "answer.raise_for_status()",
            "print(answer.text)",
            "",
        ]
    )


def _python_by_command_line(plan: Any) -> str:
    try:
        arguments = ["localllm", "--output", "json", *argv_of(short(plan))]
    except Unsupported as fault:
        return f"# {fault.message}\n"
    return "\n".join(
        [
            "import json",
            "import subprocess",
            "",
            f"arguments = {_literal(arguments, 12)}",
            "done = subprocess.run(arguments, capture_output=True, text=True)",
            "print(done.returncode, json.loads(done.stdout))",
            "",
        ]
    )


def _literal(value: Any, indent: int) -> str:
    """A value as Python source over as many lines as it needs."""
    return pformat(value, width=100, sort_dicts=False).replace("\n", "\n" + " " * indent)


def _bare(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without what they leave at its default."""
    return [{key: value for key, value in message.items() if not _says_nothing(key, value)} for message in messages]


def _says_nothing(key: str, value: Any) -> bool:
    return value is None or (key == "tool_calls" and not value)
