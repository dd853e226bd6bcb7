"""Soak test: ten million steps with repeated kills must not leak memory, descriptors or threads.

python tests/faults/soak.py --out benchmarks/results
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import psutil

import pysampler

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import campaigns

ENVS, EVERY = 64, 2000  # EVERY: rounds between two kills


def state(envs):
    me = psutil.Process()
    return {
        "parent, MiB": me.memory_info().rss / 2**20,
        "workers, MiB": sum(psutil.Process(p).memory_info().rss for p in envs._pool.pids) / 2**20,
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "processes": len(me.children(recursive=True)),
        "mappings": Path("/proc/self/maps").read_text().count("memfd:pysampler"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=float, default=1e7)
    parser.add_argument("--out", type=Path, help="folder to write the table to")
    args = parser.parse_args()
    envs = pysampler.make_vec(
        "CartPole-v1",
        ENVS,
        vector_kwargs={
            "num_workers": 2,
            "on_worker_loss": "restart",
            "autoreset_mode": "SameStep",
            "max_restarts": 10**6,
        },
    )
    envs.reset(seed=1)
    actions = envs.action_space.sample()
    rounds = int(args.steps / ENVS)
    first, begun = {}, time.monotonic()
    for i in range(rounds):
        if i % EVERY == EVERY // 2:
            os.kill(envs._pool.pids[i // EVERY % 2], signal.SIGKILL)
        envs.step(actions)
        if i == min(rounds // 10, 5 * EVERY) - 1:
            first = state(envs)
    last = state(envs)
    rows = [(key, f"{value:.1f}", f"{last[key]:.1f}") for key, value in first.items()]
    text = campaigns.headed(
        "Soak",
        f"{rounds * ENVS:,} steps of CartPole-v1 in {time.monotonic() - begun:.0f} s; of its 2 "
        f"workers {envs.stats().losses.sum()} were killed and replaced.\n\n"
        + campaigns.table(rows, "| | after a tenth | at the end |"),
    )
    envs.close()
    print(text)
    campaigns.write(args.out, "soak", text)
    flat = last["parent, MiB"] < first["parent, MiB"] + 8
    flat &= all(last[key] == first[key] for key in list(first)[2:])
    return not flat


if __name__ == "__main__":
    sys.exit(main())
