"""gymnasium's vector env on a pool of workers.

The server of Python envs in a worker and its jobs, results as gymnasium wants them, partial
batches, recordings, and the lease that lets a sampler use the envs. This package knows gymnasium,
pools and frames. It does not know policies.
"""
