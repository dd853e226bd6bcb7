"""Rollouts: a policy and envs make T steps at a time, as arrays ``[T, N]``.

With the policy in the main process or in the workers; rollouts of tasks, and evaluation, which are
made of them. This room knows how steps follow one another, and what a learner reads of them. It
keeps nothing beyond the last few rollouts.
"""
