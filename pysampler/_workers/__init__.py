"""Processes that do jobs: pools, recovery, the nursery, the worker's loop, mail, counters.

A pool starts workers, gives them jobs and notes, waits for their answers, and replaces workers that
are lost. This room knows what a job and a host are (``jobs.py``), but no particular ones: no
gymnasium, no envs, no policies, nothing of what lies in a frame.
"""
