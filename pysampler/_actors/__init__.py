"""Actors: workers that act by themselves, and hand records to a learner through a ring.

Records, phases, and the watcher that shows how a policy does. This room knows when a worker acts,
blocks and takes over weights. What a learner makes of records is not known here.
"""
