"""Policies: calls and their checks, weights, recurrent states and random numbers.

Also the normalization of observations and rewards, the code with which a worker calls a policy,
and the base class of samplers, which lease a vector env for a policy. This package does not know
the order of steps or the use of their results: the samplers above decide both.
"""
