"""Drivers that are Ray actors or tasks and end without closing their samplers."""

import json
import os
import threading

import pytest
import ray
from hosts_in_tests import assert_nothing_left, processes_of_hosts, rollouts
from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
from ray.experimental.internal_kv import _internal_kv_get

pytestmark = pytest.mark.slow


@ray.remote(num_cpus=0)
class Driver:
    """Samples from two hosts, like a Ray Tune trial."""

    def begin(self, **options):
        self.sampler = rollouts(**options)
        return self.sampler.take().hosts

    def train(self):
        """Sample until the process ends, in a thread."""
        taken = threading.Event()

        def loop():
            while True:
                self.sampler.take()
                taken.set()

        threading.Thread(target=loop, daemon=True).start()
        taken.wait()

    def exit(self):
        ray.actor.exit_actor()

    def die(self):
        os._exit(1)


def cpus_taken():
    return ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0)


def wait_for_cpus(taken):
    while cpus_taken() != taken:
        threading.Event().wait(0.05)  # poll: Ray sends no notice; the watchdog is the limit


@pytest.mark.parametrize(
    ("end", "busy"), [("kill", False), ("kill", True), ("exit", True), ("die", True)]
)
def test_cpus_are_free_after_a_driver_actor_ends(cluster, end, busy):
    driver = Driver.remote()
    assert sorted(ray.get(driver.begin.remote())) == [0, 1]
    assert cpus_taken() == 2
    if busy:
        ray.get(driver.train.remote())
    if end == "kill":
        ray.kill(driver)
    else:
        getattr(driver, end).remote()
    wait_for_cpus(0)
    assert_nothing_left()


def test_a_restarted_driver_actor_gets_its_cpus_back(cluster):
    driver = Driver.options(max_restarts=1, max_task_retries=-1).remote()
    for _ in range(2):  # of three CPUs, two at a time
        assert sorted(ray.get(driver.begin.remote())) == [0, 1]
        the_process("ray::Driver").kill()
    wait_for_cpus(0)
    assert_nothing_left()


def test_a_dead_keeper_and_a_dead_anchor_are_replaced(cluster):
    driver = Driver.remote()
    ray.get(driver.begin.remote())
    for kind in ("PysamplerAnchor", "PysamplerKeeper"):
        process = the_process(kind)
        process.kill()
        while the_process(kind) in (None, process):
            threading.Event().wait(0.05)
    ray.get(driver.train.remote())
    assert cpus_taken() == 2
    ray.kill(driver)
    wait_for_cpus(0)
    assert_nothing_left()


def the_process(kind):
    """Return the process of the only actor of a class, or None."""
    found = processes_of_hosts([kind])
    return found[0] if found else None


def test_cpus_are_free_after_a_driver_task_dies(cluster):
    @ray.remote(num_cpus=0, max_retries=0)
    def train():
        with rollouts() as some:
            some.take()
            os._exit(1)

    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(train.remote())
    wait_for_cpus(0)
    assert_nothing_left()


def test_a_dead_driver_requests_no_nodes(cluster):
    def asked():
        return json.loads(_internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL))

    driver = Driver.remote()
    ray.get(driver.begin.remote(hosts="auto", max_hosts=3))
    assert asked() == [{"CPU": 1}] * 3
    ray.kill(driver)
    while asked():
        threading.Event().wait(0.05)
    assert_nothing_left()


def test_cpus_are_free_after_a_driver_dies_before_its_hosts_start(cluster):
    driver = Driver.remote()
    driver.begin.remote()
    ray.kill(driver)
    wait_for_cpus(0)
    assert_nothing_left()
