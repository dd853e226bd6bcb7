"""What a learner keeps: a replay buffer, checkpoints, and the average of several learners' weights.

This package uses the others as a user would. Nothing below depends on it.
"""
