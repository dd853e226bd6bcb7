"""Whether envs may share a process: a check by fresh processes, and modules known to interfere.

``runs.py`` steps an env alone or beside siblings, in a worker; ``shared.py`` notes there what the
envs of a process change for each other; ``check.py`` compares the runs. ``known.py`` has the table.
"""
