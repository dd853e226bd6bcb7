"""Envs that come with pysampler."""
