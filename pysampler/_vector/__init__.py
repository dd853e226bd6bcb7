"""gymnasium's vector env on a pool of workers.

The host of Python envs in a worker and its jobs, results as gymnasium wants them, partial batches,
recordings, and the lease that lets a sampler use the envs. This room knows gymnasium, pools and
frames. It knows no policies: what acts is the caller's.
"""
