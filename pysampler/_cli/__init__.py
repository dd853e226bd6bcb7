"""The command ``pysampler``: what this machine can do, and what running programs do.

``main`` reads the command line. Each subcommand is a module with ``add_arguments`` and ``run``; the
tables that they print are made in ``screen``.
"""
