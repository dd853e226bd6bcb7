"""Envs that come with pysampler: ``pysampler.envs.meta`` has envs of many tasks."""
