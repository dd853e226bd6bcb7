"""Frames: the arrays of one step of all envs in shared memory.

A space becomes fields (``spec.py``), fields become arrays of a ring of frames (``frames.py``), and
infos that are numbers get columns there (``infos.py``). This package deals with memory and spaces;
it does not start processes or step envs.
"""
