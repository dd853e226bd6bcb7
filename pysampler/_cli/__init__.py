"""The command ``pysampler``: checks and measures this machine, and inspects running programs.

``main`` reads the command line; each subcommand is a module with ``add_arguments`` and ``run``, but
``dump``, which is in ``top``:

- ``doctor`` checks the machine; ``kernel`` reads the kernel's files for it
- ``evaluate`` loads ``policies``
- ``top`` and ``dump`` find ``programs`` and summarize their counters with ``look``
- ``trace`` reads slices with ``recorder`` and writes a ``trace_dump``; ``chrome`` links them with
  ``rounds`` and converts the dump
- ``bench`` and ``tune`` run ``contenders`` in separate processes that take ``turns``; ``sources``
  finds the function that makes the envs, ``choices`` lists the options to try, ``isolation`` checks
  whether envs may share a process, ``hangs`` says where one hangs, ``measuring`` is shared by both

``screen`` makes lines, tables and bars.
"""
