"""Whether envs may share a process: a check by fresh processes, and modules known to interfere.

``runs.py`` steps an env alone or beside siblings, in a worker; ``members.py`` records its results,
and ``shared.py`` notes what the envs of a process change for each other. ``check.py`` starts the
runs, and ``verdict.py`` compares them. ``known.py`` has the table of modules.
"""
