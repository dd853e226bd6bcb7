"""Actors: workers that act without commands, and push records to a ring for a learner.

Also records, phases, and the watcher that evaluates a policy during training. This package decides
when a worker acts, blocks and loads weights. It does not know how a learner uses records.
"""
