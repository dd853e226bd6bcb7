"""Envs in gymnasium's wrappers, stepped together: the wrappers run on the arrays of all envs.

``stack.py`` recognises stacks of wrappers, ``layers.py`` has the counterpart of each wrapper,
``elementwise.py`` checks functions of users, ``block.py`` runs layers around a block of envs, and
``server.py`` makes the blocks in a worker, next to the real envs, which answer all other calls.
"""
