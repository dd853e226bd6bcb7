"""Helpers for tests of policies."""

import numpy as np

import pysampler

WAYS = [
    {"policy_in": "main"},
    {"policy_in": "main", "overlap": True},
    {"policy_in": "workers"},
]


def still(observations):
    return np.zeros((len(observations), 2), np.float32)


def first(envs, policy, **options):
    """Return copies of the actions and extras of a rollout of five steps."""
    with pysampler.Rollouts(envs, policy, 5, **options) as rollouts:
        rollout = next(rollouts)
        return {
            "actions": rollout.actions.copy(),
            **{name: value.copy() for name, value in rollout.extras.items()},
        }
