"""Each argument of each env means the same for envs simulated together as for single envs."""

import inspect
import math

import numpy as np
import pytest
from gymnasium.envs.mujoco.mujoco_env import MujocoEnv
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mujoco_in_tests import (
    CHEETAH,
    IDS,
    MODES,
    arguments_of,
    assert_equal,
    compare,
    drawn_actions,
    each,
    identical,
    one_by_one,
    together,
)

INF = math.inf
MOVING = {
    "forward_reward_weight": 0.7,
    "ctrl_cost_weight": 0.3,
    "reset_noise_scale": 0.03,
    "exclude_current_positions_from_observation": False,
}
HEALTHY = {"healthy_reward": 0.3, "terminate_when_unhealthy": False}
MANY = {
    f"include_{field}_in_observation": False
    for field in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
}
# Each argument with a value other than its default; frame_skip, common to all, is below.
AWAY = {
    "HalfCheetah": MOVING,
    "Swimmer": MOVING,
    "Hopper": {
        **(MOVING | HEALTHY),
        "healthy_state_range": (-1.0, 2.0),
        "healthy_z_range": (1.2, 1.3),
        "healthy_angle_range": (-0.02, 0.01),
    },
    "Walker2d": {
        **(MOVING | HEALTHY),
        "healthy_z_range": (1.2, 1.3),
        "healthy_angle_range": (-0.02, 0.01),
    },
    "Ant": {
        **(MOVING | HEALTHY),
        "contact_cost_weight": 0.02,
        "main_body": "front_left_leg",
        "healthy_z_range": (0.4, 0.7),
        "contact_force_range": (-0.2, 0.5),
        "include_cfrc_ext_in_observation": False,
    },
    "Humanoid": {
        **(MOVING | HEALTHY | MANY),
        "contact_cost_weight": 1e-4,
        "contact_cost_range": (0.1, 0.5),
        "healthy_z_range": (1.35, 1.39),
    },
    "HumanoidStandup": {
        **MANY,
        "uph_cost_weight": 0.4,
        "ctrl_cost_weight": 0.3,
        "impact_cost_weight": 1e-4,
        "impact_cost_range": (0.1, 0.5),
        "reset_noise_scale": 0.03,
        "exclude_current_positions_from_observation": False,
    },
    "InvertedPendulum": {"reset_noise_scale": 0.1},
    "InvertedDoublePendulum": {"reset_noise_scale": 0.2, "healthy_reward": 3.0},
    "Reacher": {"reward_dist_weight": 0.4, "reward_control_weight": 0.3},
    "Pusher": {
        "reward_dist_weight": 0.4,
        "reward_control_weight": 0.3,
        "reward_near_weight": 0.2,
    },
}
FRAMES = {"frame_skip": 3}
SINGLE = [
    (f"{name}-v5", argument, value)
    for name, arguments in AWAY.items()
    for argument, value in (arguments | FRAMES).items()
]
MORE = [
    ("Ant-v5", "main_body", 0),
    ("Ant-v5", "main_body", 3),
    ("Ant-v5", "contact_force_range", (-INF, INF)),
    ("Hopper-v5", "healthy_state_range", (-INF, INF)),
    ("Humanoid-v5", "contact_cost_range", (-INF, INF)),
    ("HalfCheetah-v5", "reset_noise_scale", 0),
    ("HalfCheetah-v5", "ctrl_cost_weight", np.float64(0.1)),
    ("HalfCheetah-v5", "ctrl_cost_weight", np.float32(0.1)),
    ("Hopper-v5", "healthy_reward", 2),
    ("Ant-v5", "healthy_reward", np.float32(0.1)),
    ("InvertedDoublePendulum-v5", "healthy_reward", 4),
]


@pytest.mark.parametrize("env_id", each(IDS))
def test_the_tests_cover_every_argument(env_id):
    """Models and cameras have separate tests for all envs."""
    names = set(AWAY[env_id.removesuffix("-v5")]) | {"frame_skip"}
    defaults = arguments_of(env_id)
    assert names == set(defaults) - {"xml_file", "default_camera_config"}
    for name in names - {"frame_skip"}:
        assert defaults[name] != AWAY[env_id.removesuffix("-v5")][name]
    assert defaults["frame_skip"] != 3
    cameras = inspect.signature(MujocoEnv).parameters.keys() - {
        *("model_path", "frame_skip", "observation_space", "render_mode")
    }
    assert cameras == CAMERA.keys() | {"camera_name"}


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "name", "value"), SINGLE + MORE)
def test_each_argument_alone_equals_single_envs(env_id, name, value):
    assert_equal(env_id, {name: value})


@pytest.mark.parametrize("mode", MODES)
def test_an_argument_that_can_change_is_native_in_a_worker(mode):
    """In this process the program could change it, so envs are in Python there."""
    assert_equal("Ant-v5", {"healthy_z_range": [0.4, 0.7]}, mode, num_workers=1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", AWAY)
def test_all_arguments_at_once_equal_single_envs(name, mode):
    assert_equal(f"{name}-v5", AWAY[name] | FRAMES, mode)


CAMERA = {
    "width": 64,
    "height": 48,
    "camera_id": 0,
    "default_camera_config": {"distance": 9.0},
    "max_geom": 300,
    "visual_options": {1: True},
}


@pytest.mark.parametrize("env_id", each(IDS))
def test_cameras_do_not_change_results(env_id):
    for mode in ("rgb_array", "depth_array"):
        assert_equal(env_id, {**CAMERA, "render_mode": mode}, steps=3)
    assert_equal(env_id, {"camera_name": "track"}, steps=3)


def test_an_unknown_argument_raises_type_error():
    for native in ("auto", True, False):
        with pytest.raises(TypeError, match="no_such"):
            together(CHEETAH, 2, {"no_such": 1}, native=native)


# -- random arguments -----------------------------------------------------------------------------

weights = st.one_of(
    st.floats(-2, 2), st.integers(-1, 2), st.builds(np.float32, st.floats(-2, 2, width=32))
)
scales = st.one_of(st.floats(0, 0.3), st.just(0))


def ranges(low, high):
    """Return pairs (low, high); either may be infinite."""
    pairs = st.tuples(st.floats(low, high), st.floats(low, high)).map(sorted).map(tuple)
    return st.one_of(pairs, pairs.map(lambda pair: (pair[0], INF)), st.just((-INF, INF)))


def values(name):
    if name == "reset_noise_scale":
        return scales
    if name.endswith("_range"):
        return ranges(*{"healthy_z_range": (0.1, 1.6)}.get(name, (-3.0, 3.0)))
    if name == "main_body":
        return st.sampled_from(["torso", "aux_1", 0, 1, 5])
    if name == "frame_skip":
        return st.integers(1, 7)
    if name.startswith(("include", "exclude", "terminate")):
        return st.booleans()
    return weights


arguments = {
    f"{name}-v5": st.fixed_dictionaries(
        {}, optional={argument: values(argument) for argument in (away | FRAMES)}
    )
    for name, away in AWAY.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
@settings(
    max_examples=8,
    derandomize=True,
    phases=[Phase.generate],  # shrinking an example would take minutes
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_random_arguments_equal_single_envs(env_id, data):
    """Drawn actions have any dtype and may make the simulation unstable."""
    chosen = data.draw(arguments[env_id])
    mode = data.draw(st.sampled_from(MODES))
    limit = data.draw(st.sampled_from([1, 2, 9, 1000]))
    count = data.draw(st.integers(1, 4))
    seed = data.draw(st.integers(0, 2**70))
    groups = data.draw(st.integers(1, count))
    chosen["max_episode_steps"] = limit
    ours = together(env_id, count, chosen, autoreset_mode=mode, groups=groups)
    theirs = one_by_one(env_id, count, chosen, mode)
    identical(ours.reset(seed=seed), theirs.reset(seed=seed), "reset")
    for _ in range(3):
        factor = data.draw(st.sampled_from([0.0, 0.4, 1.0, 20.0]))
        space = theirs.action_space
        compare(ours, theirs, drawn_actions(space, seed % 1000, 6, beyond=factor))
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
        if mask.any():
            resets = [one.reset(options={"reset_mask": mask}) for one in (ours, theirs)]
            identical(*resets, "masked reset")
    ours.close()
    theirs.close()
