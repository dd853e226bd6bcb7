"""gymnasium's vector env on a pool of workers.

Contains the server of Python envs in a worker and its jobs, results in gymnasium's form, partial
batches, recordings, and the lease that lets a sampler use the envs. Knows gymnasium, pools and
frames, but not policies.
"""
