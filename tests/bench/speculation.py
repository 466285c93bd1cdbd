"""Measure speculation on against off: two servers of localllm, round by round in turn, with a bound on the ratio.

For each workload the ratio on/off is taken a round; its mean gets a 95 % bound from Student's distribution.

Usage: speculation.py [--rounds 10] [--only W1,W2]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
from pathlib import Path

import servers
from workloads import WORKLOADS, Client

BOUND = 1.05
WALL_OF = ("W1", "W2", "W6", "W7")
ONE_SIDED_95 = {5: 2.015, 6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833, 10: 1.812, 15: 1.753, 20: 1.725, 30: 1.697}
"""Quantiles of Student's distribution by degrees of freedom; the next lower one counts between two."""


def upper_bound(ratios: list[float]) -> float:
    """The upper 95 % bound of the mean ratio, taken on logarithms, since ratios are skewed."""
    logs = [math.log(ratio) for ratio in ratios]
    freedom = len(logs) - 1
    factor = ONE_SIDED_95[max(known for known in ONE_SIDED_95 if known <= freedom)]
    return math.exp(statistics.mean(logs) + factor * statistics.stdev(logs) / math.sqrt(len(logs)))


async def ratios_of(urls: dict[str, str], name: str, rounds: int) -> list[float]:
    """Wall time with speculation over wall time without, a round each; the order turns with each round."""
    clients = {which: Client(url) for which, url in urls.items()}
    for which, client in clients.items():
        await WORKLOADS[name](client, -1)
        print(f"{name} warm-up {which}", file=sys.stderr)
    ratios = []
    for number in range(rounds):
        walls = {}
        for which in list(urls) if number % 2 == 0 else list(urls)[::-1]:
            walls[which] = (await WORKLOADS[name](clients[which], number)).wall_s
        ratios.append(walls["on"] / walls["off"])
        print(f"{name} round {number + 1}: {ratios[-1]:.3f}", file=sys.stderr)
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default=",".join(WALL_OF))
    given = parser.parse_args()
    if given.rounds < 6:
        parser.error("fewer than 6 rounds give no bound")
    model = given.model or servers.default_model()
    args = ("--n-threads", "2", "--n-slots", "8")
    good = True
    with (
        servers.localllm(model, args=args) as on,
        servers.localllm(model, args=(*args, "--backend-options", '{"speculation": false}')) as off,
    ):
        print("| workload | on/off | upper 95 % bound | must |\n|---|---:|---:|---:|")
        for name in given.only.split(","):
            ratios = asyncio.run(ratios_of({"on": on.url, "off": off.url}, name, given.rounds))
            mean, bound = math.exp(statistics.mean(map(math.log, ratios))), upper_bound(ratios)
            good = good and bound <= BOUND
            mark = "" if bound <= BOUND else " (missed)"
            print(f"| {name} | {mean:.3f} | {bound:.3f} | ≤ {BOUND}{mark} |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
