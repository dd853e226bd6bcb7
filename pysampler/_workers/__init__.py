"""The runtime: one pool over lanes, recovery, the fork server, the worker's loop, mail, counters.

A pool commands groups, in workers and in this process, waits for their completions, and replaces
lost workers. This package defines the interfaces of jobs and env servers (``jobs.py``) but no
concrete ones: gymnasium, envs, policies and the contents of frames belong to the layers above.
"""
