"""Actors: workers that act without commands, and hand records to a learner through a ring.

Also records, phases, and the watcher that evaluates a policy during training. This package decides
when a worker acts, blocks and loads weights. It does not know how a learner uses records.
"""
