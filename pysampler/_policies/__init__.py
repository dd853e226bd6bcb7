"""Policies: how they are called and checked, their weights, states and random numbers.

Also what normalises observations and rewards, the part of a worker that acts with a policy, and the
base class of samplers, which lease a vector env for a policy. This package does not know in which
order steps are made, nor what becomes of them: that is for the samplers above.
"""
