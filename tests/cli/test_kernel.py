"""CPUs and limits read from the kernel's files, here from made-up folders."""

import os

import pytest

from pysampler._cli.kernel import busy_seconds, cores, cpus_in, numa_nodes, process_limits


def write(folder, **files):
    """Write files; "__" in a name stands for "/"."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return folder


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        *(("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("0\n", {0}), ("3-1", set())),
        *(("none", set()), ("1,-2", set()), ("0-99999999999", set())),
    ],
)
def test_cpu_lists_are_parsed(text, cpus):
    assert cpus_in(text) == cpus


def test_a_machine_without_smt_has_a_core_for_each_cpu(tmp_path):
    write(tmp_path, cpu0__topology__core_cpus_list="0", cpu1__topology__core_cpus_list="1")
    assert cores({0, 1}, tmp_path) == 2


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_sibling_cpus_count_as_one_core(tmp_path, name):
    for cpu in range(4):
        write(tmp_path, **{f"cpu{cpu}__topology__{name}": f"{cpu % 2},{cpu % 2 + 2}"})
    assert cores(range(4), tmp_path) == 2
    assert cores({0, 1}, tmp_path) == 2  # of two cores, one each
    assert cores({0, 2}, tmp_path) == 1


def test_a_cpu_without_topology_counts_as_a_core(tmp_path):
    assert cores({0, 1, 2}, tmp_path / "missing") == 3
    write(tmp_path, cpu0__topology__core_cpus_list="0-1", cpu1__topology__core_cpus_list="0-1")
    write(tmp_path, cpu2__topology__core_cpus_list="?", cpu3__online="0")
    assert cores({0, 1, 2, 3}, tmp_path) == 3


def test_numa_nodes_are_those_of_the_given_cpus(tmp_path):
    write(tmp_path, node0__cpulist="0-1", node1__cpulist="2-3", node2__cpulist="")  # memory alone
    write(tmp_path, possible="0-2", has_cpu="0-1")
    assert numa_nodes({0, 1, 2, 3}, tmp_path) == [0, 1]
    assert numa_nodes({2}, tmp_path) == [1]
    assert numa_nodes({0}, tmp_path / "missing") == []


def test_limits_of_all_parent_cgroups_count(tmp_path):
    """In cgroups v2, the process's group and all its ancestors."""
    write(tmp_path / "proc/self", cgroup="0::/user/job\n1:cpu:/user")
    groups = tmp_path / "sys/fs/cgroup"
    write(groups, pids__pids__max="7", user__job__pids="none")
    write(groups / "user", **{"pids.max": "90", "pids.current": "12"})
    write(groups / "user/job", **{"pids.max": "max", "pids.current": "3"})
    assert process_limits(tmp_path) == {"/sys/fs/cgroup/user/pids.max": (90, 12)}


def test_cgroups_v1_have_a_folder_per_controller(tmp_path):
    write(tmp_path / "proc/self", cgroup="8:cpu,cpuacct:/a\n7:pids:/a/b\n0::/a")
    groups = tmp_path / "sys/fs/cgroup"
    write(groups / "pids/a", **{"pids.max": "40"})
    write(groups / "cpu/a", **{"pids.max": "1"})
    assert process_limits(tmp_path) == {"/sys/fs/cgroup/pids/a/pids.max": (40, 0)}


@pytest.mark.parametrize("text", ["0::/../../outside", "0::/gone/too", "", "0", "x:y"])
def test_missing_cgroup_files_set_no_limit(tmp_path, text):
    """A container may see the root of the cgroups but not its own group."""
    write(tmp_path / "proc/self", cgroup=text)
    assert process_limits(tmp_path) == {}
    write(tmp_path / "sys/fs/cgroup", **{"pids.max": "5"})
    expected = {"/sys/fs/cgroup/pids.max": (5, 0)} if text.startswith("0::") else {}
    assert process_limits(tmp_path) == expected


def test_busy_seconds_exclude_idle_time(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  1 2 3 4 5 6 7 8 9 9\ncpu1 9 9 9 9\ncpu12 100 200 300 4000 5000 0 50 50 7 7\n"
    )
    ticks = os.sysconf("SC_CLK_TCK")
    assert busy_seconds({12, 2}, stat) == 700 / ticks
    assert busy_seconds({1, 12}, stat) == 727 / ticks
    assert busy_seconds({0}, tmp_path / "none") == 0
