"""Rollouts: a policy and envs make T steps at a time, as arrays ``[T, N]``.

This package drives the steps, with the policy in the main process or in the workers, and builds the
arrays that a learner reads. Task sampling and evaluation are built on rollouts. Only the last few
rollouts are kept.
"""
