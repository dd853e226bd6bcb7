"""Rollouts: a policy and envs make T steps at a time, as arrays ``[T, N]``.

This package knows how steps follow one another, with the policy in the main process or in the
workers, and what a learner reads of them. Rollouts of tasks and evaluation are built on rollouts.
It keeps nothing beyond the last few rollouts.
"""
