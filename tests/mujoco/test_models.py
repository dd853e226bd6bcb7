"""Envs with other models than gymnasium's: other sizes and features."""

import inspect
from pathlib import Path
from xml.etree import ElementTree

import pytest
from gymnasium.envs.mujoco.mujoco_env import MujocoEnv
from mujoco_in_tests import IDS, arguments_of, assert_equal, each


def altered(env_id, tmp_path, change):
    """Write an env's model with a change; return the argument for its path."""
    assets = Path(inspect.getfile(MujocoEnv)).parent / "assets"
    tree = ElementTree.parse(assets / arguments_of(env_id)["xml_file"])
    change(tree.getroot())
    path = tmp_path / "model.xml"
    tree.write(path)
    return {"xml_file": str(path)}


def add(parent, text):
    parent.append(ElementTree.fromstring(text))


def slower(root):
    option = root.find("option")
    option.set("timestep", "0.003")
    option.set("gravity", "0.5 0 -7")
    for actuator in root.find("actuator"):
        actuator.set("gear", "7")
        actuator.set("ctrlrange", "-0.3 0.7")
        actuator.set("ctrllimited", "true")


def with_a_ball(root):
    """Append joints, bodies and contacts to gymnasium's."""
    add(
        root.find("worldbody"),
        '<body name="ball" pos="0.4 0.1 0.6"><freejoint/><geom type="sphere" size="0.1"/></body>',
    )


def with_memory(root):
    """Add actuators with activations and a mocap body."""
    motors = root.find("actuator")
    first = motors[0].get("joint")
    limits = 'ctrllimited="true" ctrlrange="-1 1"'
    for joint in [motor.get("joint") for motor in motors]:
        add(
            motors, f'<general joint="{joint}" {limits} dyntype="filter" dynprm=".05" gainprm="3"/>'
        )
    limits += ' actlimited="true" actrange="-0.1 0.1"'
    add(motors, f'<general joint="{first}" {limits} dyntype="integrator"/>')
    add(
        root.find("worldbody"),
        '<body name="hand" mocap="true" pos="0 0 3"><geom size="0.1" contype="0"/></body>',
    )


MODELS = [slower, with_a_ball, with_memory]
# Observations of these depend on the model's size.
SIZED = ["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5", "Ant-v5", "Humanoid-v5"]


@pytest.mark.parametrize("env_id", each(IDS))
def test_a_changed_model_equals_single_envs(env_id, tmp_path):
    assert_equal(env_id, altered(env_id, tmp_path, slower))


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [*SIZED, "HumanoidStandup-v5"])
@pytest.mark.parametrize("change", [with_a_ball, with_memory], ids=lambda one: one.__name__)
def test_a_larger_model_equals_single_envs(env_id, change, tmp_path):
    assert_equal(env_id, altered(env_id, tmp_path, change))


@pytest.mark.parametrize("touching", ["by type", "by pair"])
def test_contacts_of_a_model_that_had_none_equal_single_envs(touching, tmp_path):
    """No two geoms of gymnasium's pendulum touch, so its simulations do not look for contacts."""

    def with_a_wall(root):
        wall = '<geom name="wall" type="box" size="0.05 0.5 0.5" pos="0.2 0 0"/>'
        add(root.find("worldbody"), wall)
        if touching == "by pair":
            add(root, '<contact><pair geom1="cart" geom2="wall"/></contact>')
        else:
            root.find("default/geom").set("contype", "1")

    assert_equal("InvertedPendulum-v5", altered("InvertedPendulum-v5", tmp_path, with_a_wall))
