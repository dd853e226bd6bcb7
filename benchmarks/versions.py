"""Rates of samplers in two installations of pysampler, in turn.

    python benchmarks/versions.py OLD/.venv/bin/python NEW/.venv/bin/python

Each is a process of its own, which samples only in its slices: the other one waits meanwhile.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from statistics import median, quantiles

import numpy as np

CASES = {
    "rollouts, main": {},
    "rollouts, overlap": {"overlap": True},
    "rollouts, two groups": {"vector_kwargs": {"groups": 2}},
    "rollouts, ready": {"min_envs": 4},
    "rollouts, workers": {"policy_in": "workers"},
    "tasks": {},
    "actors": {},
    "actors, central": {"device": "cpu"},
    "evaluation, main": {},
    "evaluation, workers": {"policy_in": "workers"},
}
ENVS = 8


def policy(observations):
    return (np.asarray(observations)[:, 2] > 0).astype(np.int64)


def homewards(observations, params=None):  # noqa: ARG001 - an argument of policies for tasks
    return -observations


def steps_of(case):
    """Return a function that samples for a while and returns how many steps it took."""
    import pysampler
    import pysampler.envs.meta

    options = {"num_envs": ENVS, "vector_kwargs": {"num_workers": 2, "native": False}}
    for name, value in CASES[case].items():
        options[name] = {**options[name], **value} if name in options else value
    if case.startswith("rollouts"):
        rollouts = pysampler.Rollouts("CartPole-v1", policy, 64, seed=1, **options)
        return lambda: next(rollouts).steps
    if case == "tasks":
        sampler = pysampler.MultiTaskSampler(
            *("Navigation2D-v0", homewards),
            **{**options, "vector_kwargs": {"num_workers": 2}},
            seed=1,
        )
        sampler.sample_tasks(4)
        return lambda: sampler.sample(64).steps
    if case.startswith("actors"):
        actors = pysampler.Actors("CartPole-v1", policy, seed=1, **options)
        return lambda: len(actors.take(512, min_records=512))

    envs = pysampler.make_vec("CartPole-v1", ENVS, vector_kwargs=options.pop("vector_kwargs"))
    del options["num_envs"]

    def evaluated():
        return int(pysampler.evaluate(envs, policy, 400, seed=1, **options).lengths.sum())

    return evaluated


def serve(case):
    """Sample for as many seconds as each line of the input says, and print the rate."""
    sample = steps_of(case)
    sample()
    print("ready", flush=True)
    for line in sys.stdin:
        began, steps = time.perf_counter(), 0
        while (seconds := time.perf_counter() - began) < float(line):
            steps += sample()
        print(steps / seconds, flush=True)


def compared(pythons, case, slices, seconds):
    """Return the rates of both installations, slice by slice."""
    programs = [
        subprocess.Popen(
            [python, __file__, "--serve", case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for python in pythons
    ]
    for program in programs:
        assert program.stdout.readline() == "ready\n", case
    rates = ([], [])
    pairs = list(zip(programs, rates, strict=True))
    for turn in range(slices):
        for program, own in pairs if turn % 2 else pairs[::-1]:
            program.stdin.write(f"{seconds}\n")
            program.stdin.flush()
            own.append(float(program.stdout.readline()))
    for program in programs:
        program.stdin.close()
        program.wait()
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*")
    parser.add_argument("--slices", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--cases", nargs="*", default=[*CASES])
    parser.add_argument("--serve")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    print("| | old, steps/s | new, steps/s | new / old |\n| --- | --- | --- | --- |", flush=True)
    for case in options.cases:
        old, new = compared(options.pythons, case, options.slices, options.seconds)
        ratios = [one / other for one, other in zip(new, old, strict=True)]
        low, _, high = quantiles(ratios, n=4)
        ratio = f"**{median(ratios):.2f} [{low:.2f}, {high:.2f}]**"
        print(f"| {case} | {median(old):,.0f} | {median(new):,.0f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
