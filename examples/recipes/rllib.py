# /// script
# dependencies = ["ray[rllib]==2.60.0", "torch"]
# ///
"""RLlib's PPO on pysampler, in this process or in separate runners.

    python rllib.py --runners 2 --steps 100000

In this process an env is registered whose function makes the vector env. Each remote runner is
another process: there `pysampler.install()` replaces gymnasium's AsyncVectorEnv.
"""

import argparse

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

import pysampler


def make(context):
    workers = context.get("num_workers")
    return pysampler.make_vec("CartPole-v1", context["num_envs"], num_workers=workers)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--runners", type=int, default=0)
parser.add_argument("--envs", type=int, default=8, help="envs of each runner")
options = parser.parse_args()

hook = {"worker_process_setup_hook": pysampler.install} if options.runners else {}
ray.init(
    "local", include_dashboard=False, log_to_driver=False, runtime_env=hook, logging_level="ERROR"
)
config = PPOConfig().training(train_batch_size=1000, minibatch_size=250, num_epochs=4)
if options.runners:
    config.environment("CartPole-v1")
    mode = "async"
else:
    register_env("cartpole", make)
    config.environment("cartpole", env_config={"num_workers": 2})
    mode = "vector_entry_point"
config.env_runners(
    num_env_runners=options.runners,
    num_envs_per_env_runner=options.envs,
    gym_env_vectorize_mode=mode,
)
algorithm = config.build_algo()
steps, mean = 0, 0.0
while steps < options.steps:
    results = algorithm.train()["env_runners"]
    steps, mean = results["num_env_steps_sampled_lifetime"], results["episode_return_mean"]
made = algorithm.env_runner_group.foreach_env_runner(
    lambda runner: None if runner.env is None else type(runner.env.unwrapped).__module__
)
algorithm.stop()
ray.shutdown()
envs = next(name for name in made if name is not None)
print(f"RLlib's PPO: {steps:.0f} steps of {envs}, return {mean:.0f}")
