"""Whether envs may share a process: a check by fresh processes, and modules known to interfere.

``runs.py`` steps an env alone or beside siblings, in a worker; ``members.py`` records its results,
and ``shared.py`` notes what the envs of a process change for each other, with ``captured.py`` for
objects of their functions. ``check.py`` starts the runs, and ``verdict.py`` compares them.
``known.py`` has the table of modules.
"""
