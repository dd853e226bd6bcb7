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


def mean_and_variance(rows):
    """Return those of rows, with a prior N(0, 1) that weighs as 1e-4 of a row."""
    rows, weights = np.asarray(rows, np.float64), np.append(np.ones(len(rows)), 1e-4)
    mean = np.average(np.append(rows, [np.zeros_like(rows[0])], axis=0), axis=0, weights=weights)
    squares = np.append((rows - mean) ** 2, [1 + mean**2], axis=0)
    return mean, np.average(squares, axis=0, weights=weights)
