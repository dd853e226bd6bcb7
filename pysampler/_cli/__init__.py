"""The command ``pysampler``: checks and measures this machine, and inspects running programs.

``main`` reads the command line; each subcommand is a module with ``add_arguments`` and ``run``:

- ``doctor`` checks the machine; ``kernel`` reads the kernel's files for it
- ``top`` (also ``dump``) finds ``programs`` and summarizes their counters with ``look``
- ``trace`` reads slices with ``recorder`` and writes them to a ``dump``; ``chrome`` links them with
  ``rounds`` and converts the dump
- ``bench`` and ``tune`` run ``contenders`` in separate processes that take ``turns``; ``sources``
  finds the function that makes the envs, ``choices`` lists the options to try, ``measuring`` is
  shared by both

``screen`` makes lines, tables and bars.
"""
