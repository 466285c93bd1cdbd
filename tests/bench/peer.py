"""Measure localllm against llama.cpp's own server: same model, same threads, both up, round by round in turn.

Usage: peer.py --peer-python PYTHON [--rounds 3] [--only W1,W2] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path

import servers
from attrs import frozen
from workloads import WORKLOADS, Client, Sample, quantile


@frozen(kw_only=True)
class Figure:
    """What is compared of a workload: a value of its samples, and the ratio that must come out."""

    workload: str
    name: str
    unit: str
    bound: float
    higher_is_better: bool = False

    def value(self, samples: list[Sample]) -> float:
        match self.name:
            case "p95":
                return quantile([x for sample in samples for x in sample.latencies], 0.95) * 1000
            case "tokens/s":
                return sum(sample.tokens for sample in samples) / sum(sample.wall_s for sample in samples)
            case "wall":
                return statistics.median(sample.wall_s for sample in samples) * 1000
            case "longest gap":
                return max(x for sample in samples for x in sample.latencies) * 1000
            case _:
                return quantile([x for sample in samples for x in sample.side], 0.5) * 1000

    def holds(self, ratio: float) -> bool:
        return ratio >= self.bound if self.higher_is_better else ratio <= self.bound


FIGURES = (
    Figure(workload="W1", name="p95", unit="ms", bound=0.60),
    Figure(workload="W7", name="p95", unit="ms", bound=1.02),
    Figure(workload="W2", name="tokens/s", unit="tok/s", bound=1.00, higher_is_better=True),
    Figure(workload="W3", name="wall", unit="ms", bound=0.20),
    Figure(workload="W4", name="longest gap", unit="ms", bound=0.06),
    Figure(workload="W4", name="long prompts", unit="ms", bound=1.3),
    Figure(workload="W5", name="wall", unit="ms", bound=0.65),
    Figure(workload="W6", name="wall", unit="ms", bound=0.90),
)
MEMORY_BOUND = 120_000_000


async def measure(urls: dict[str, str], names: list[str], rounds: int) -> dict[str, dict[str, list[Sample]]]:
    """Samples by workload and server; the order of the servers turns with each round, so drift hits them alike."""
    found: dict[str, dict[str, list[Sample]]] = {}
    clients = {server: Client(url) for server, url in urls.items()}
    for client in clients.values():
        await client.ask([{"role": "user", "content": "Say ok."}], 4)
    for name in names:
        found[name] = {server: [] for server in urls}
        for number in range(rounds):
            for server in list(urls) if number % 2 == 0 else list(urls)[::-1]:
                try:
                    sample = await WORKLOADS[name](clients[server], number)
                except Exception as error:  # one workload that fails must not cost the figures of the others
                    print(f"{name} round {number + 1} {server} failed: {error!r}", file=sys.stderr)
                    continue
                found[name][server].append(sample)
                print(f"{name} round {number + 1} {server}: {sample.wall_s:.2f} s", file=sys.stderr)
    return found


def table(found: dict[str, dict[str, list[Sample]]], ours: str, theirs: str) -> tuple[list[str], bool]:
    """The figures as the lines of a Markdown table, and whether all hold."""
    lines = [f"| workload | figure | {theirs} | {ours} | ratio | must |", "|---|---|---:|---:|---:|---:|"]
    good = True
    for figure in FIGURES:
        if figure.workload not in found:
            continue
        samples = found[figure.workload]
        if not samples[theirs] or not samples[ours]:
            lines.append(f"| {figure.workload} | {figure.name} ({figure.unit}) | | | failed | |")
            good = False
            continue
        peer, own = (figure.value(samples[server]) for server in (theirs, ours))
        ratio = own / peer
        good = good and figure.holds(ratio)
        must = f"{'≥' if figure.higher_is_better else '≤'} {figure.bound:.2f}"
        mark = "" if figure.holds(ratio) else " (missed)"
        values = f"{peer:.1f} | {own:.1f} | {ratio:.3f} | {must}{mark}"
        lines.append(f"| {figure.workload} | {figure.name} ({figure.unit}) | {values} |")
    return lines, good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--json", type=Path, help="also write every sample here")
    given = parser.parse_args()
    model = given.model or servers.default_model()
    own_args = ("--n-threads", "2", "--n-slots", "8")
    with servers.peer(given.peer_python, model) as theirs, servers.localllm(model, args=own_args) as ours:
        urls = {theirs.name: theirs.url, ours.name: ours.url}
        found = asyncio.run(measure(urls, given.only.split(","), given.rounds))
        memory = {one.name: (one.resident_bytes(), one.proportional_bytes()) for one in (theirs, ours)}
    lines, good = table(found, ours.name, theirs.name)
    more = memory[ours.name][0] - memory[theirs.name][0]
    print(f"\n{given.rounds} rounds, {model.name}, 2 threads, 8 slots\n")
    print("\n".join(lines))
    for name, (resident, shared_once) in memory.items():
        print(f"memory of {name}: {resident / 1e6:.0f} MB resident, {shared_once / 1e6:.0f} MB with shared pages once")
    print(f"memory above the peer: {more / 1e6:.0f} MB (must be ≤ {MEMORY_BOUND / 1e6:.0f} MB)")
    if given.json:
        raw = {
            name: {server: [sample_dict(sample) for sample in samples] for server, samples in by_server.items()}
            for name, by_server in found.items()
        }
        given.json.write_text(json.dumps({"samples": raw, "memory": memory}, indent=1))
    return 0 if good and more <= MEMORY_BOUND else 1


def sample_dict(sample: Sample) -> dict[str, object]:
    return {
        "latencies": sample.latencies,
        "tokens": sample.tokens,
        "wall_s": sample.wall_s,
        "side": sample.side,
    }


if __name__ == "__main__":
    sys.exit(main())
