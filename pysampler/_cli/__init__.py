"""The command ``pysampler``: what this machine can do, and what running programs do.

``main`` reads the command line; each subcommand is a module with ``add_arguments`` and ``run``:

- ``doctor``, which reads files of the kernel with ``kernel``
- ``top`` (and dump), which finds ``programs``, and says with ``look`` what happened in them
- ``trace``, which reads slices with ``recorder``, puts them together with ``rounds``, and writes
  them as ``chrome`` has them
- ``bench`` and ``tune``, whose ``contenders`` take ``turns`` in processes of their own; ``sources``
  says where envs come from (``scripts``: which a script makes, in a ``script_process``),
  ``choices`` what is tried, and ``measuring`` has what both share

Lines, tables and bars are made in ``screen``.
"""
