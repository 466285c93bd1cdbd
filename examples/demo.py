"""Start a server, ask it one question, show the answer as it comes, stop the server.

Run it with `make demo`, or with any Python that has localllm installed and a model in the models folder:
`python examples/demo.py [MODEL [QUESTION]]`.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx

MODEL = "smollm2-135m"
QUESTION = "Write a Python function that reverses a string. Explain it in one sentence."


@contextlib.contextmanager
def running_server(model: str) -> Iterator[str]:
    """A server with the model loaded; yields its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "localllm", "--quiet", "serve", "--port", str(port), "--model", model],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        while not is_ready(url):
            if process.poll() is not None:
                sys.exit(process.returncode)
            time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def ask(url: str, question: str) -> tuple[int, float]:
    """Print the answer as it arrives; return its tokens and the seconds from the first token to the last."""
    body = {
        "model": "local-model",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 160,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tokens, first, last = 0, 0.0, 0.0
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False) as reply:
        if reply.status_code != 200:
            sys.exit(reply.read().decode())
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                sys.exit(chunk["error"]["message"])
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            for choice in chunk["choices"]:
                if text := choice["delta"].get("content"):
                    print(text, end="", flush=True)
                    last = time.perf_counter()
                    first = first or last
    print()
    return tokens, last - first


def main() -> None:
    model, question = (sys.argv[1:] + [MODEL, QUESTION][len(sys.argv) - 1 :])[:2]
    print(f"> {question}\n", flush=True)
    with running_server(model) as url:
        tokens, seconds = ask(url, question)
    print(f"\n{tokens} tokens, {(tokens - 1) / max(seconds, 1e-9):.1f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    main()
