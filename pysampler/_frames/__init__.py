"""Frames: the arrays of one step of all envs in shared memory.

A space becomes fields (``spec.py``), fields become arrays of a ring of frames (``frames.py``), and
infos that are numbers get columns there (``infos.py``). This package knows memory and spaces; it
knows no processes and steps no envs.
"""
