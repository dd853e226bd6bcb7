"""The runtime: one pool over lanes, recovery, the fork server, the worker's loop, mail, counters.

A pool commands groups, in workers and in this process, waits for their completions, and replaces
workers that are lost. This package knows what a job and an env server are (``jobs.py``), but no
particular ones: no gymnasium, no envs, no policies, nothing of what lies in a frame.
"""
