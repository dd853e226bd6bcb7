"""Actors: workers that act by themselves, and hand records to a learner through a ring.

Records, phases, and the watcher that shows how a policy does. This package knows when a worker
acts, blocks and takes over weights. It does not know what a learner makes of records.
"""
