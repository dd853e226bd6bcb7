"""Replay buffers, checkpoints, and averaging of several learners' weights.

This package uses the others as a user would. Nothing below depends on it.
"""
