"""Infos: values with and without columns, and batches equal to gymnasium's."""

import copy
import enum
import logging
import pickle
from fractions import Fraction

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import VectorEnv as GymVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import same

from pysampler import _core
from pysampler._frames.frames import Frames, Plan
from pysampler._frames.infos import Infos, add_columns
from pysampler._frames.spec import spec_of
from pysampler._workers.counters import Counters
from pysampler.sync import Segment

CELL = spaces.Discrete(2)


class Phase(enum.Enum):
    FIRST, LAST = "first", "last"


class Level(enum.IntEnum):
    LOW, HIGH = 1, 2


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch):
    """Start as in a program that has not made a vector env."""
    monkeypatch.setattr("pysampler._frames.infos._logged", set())


class Informed(gym.Env):
    """Returns its attribute ``info``."""

    observation_space = action_space = CELL
    info = None

    def reset(self, *, seed=None, options=None):
        return 0, self.info

    def step(self, action):
        return 0, 0.0, False, False, self.info


class Batched:
    """Envs in a block, like in a worker, with the infos of their vector env, like in the parent."""

    def __init__(self, envs, room=1 << 16):
        self.count = envs
        self.gymnasium = GymVectorEnv()
        self.gymnasium.num_envs = envs
        self.envs = [Informed() for _ in range(envs)]
        plan = Plan(spec_of(CELL, CELL), envs, 2, final=False, infos=room)
        self.frames = Frames(plan, Segment(plan.size + 1024, plan.infos))
        self.worker = _core.Infos()
        memory = np.zeros(Counters.size_of(envs, 1), np.uint8)
        self.meter = Counters(envs, 1, memory).meter(0)  # owns the memory that the block uses
        self.block = _core.EnvBlock(self.envs, 0, self.meter)
        self.block.use(self.frames, self.worker, "DISABLED", "ALL")
        self.infos = Infos(self.frames, [], self.add_info)
        self.access = _core.FrameAccess(
            self.frames, self.infos.core, copy=True, groups=[(0, envs)], spare=1
        )
        self.frame = 0
        self.mailed = []  # of the last step

    def add_info(self, infos, info, at):
        return self.gymnasium._add_info(infos, info, at)

    def step(self, *infos):
        """Step with one of these infos per env; return the batch."""
        for env, info in zip(self.envs, infos, strict=True):
            env.info = info
        self.frame = 1 - self.frame
        self.block.step(self.frame, [0] * self.count)
        overflow = self.block.take_overflow()
        assert {kind for kind, _, _ in overflow} <= {_core.EnvBlock.INFO}
        self.mailed = [(env, info) for _, env, info in overflow]
        *_, batch, mixed = self.access.read(self.frame)
        rows = [(self.frame, env) for env in range(self.count)]
        batch = self.infos.merge(rows, batch, mixed, self.mailed)
        add_columns(self.worker, self.frames, self.infos.learn(self.mailed))
        return batch

    def of_gymnasium(self, *infos):
        batch = {}
        for at, info in enumerate(infos):
            batch = self.add_info(batch, info, at)
        return batch


# -- which values get a column --------------------------------------------------------------------

COMPACT = {
    "int": 3,
    "float": 0.5,
    "bool": True,
    "float32": np.float32(2),
    "uint8": np.uint8(7),
    "complex64": np.complex64(1j),
    "numpy bool": np.bool_(1),
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "array of bools": np.array([True, False]),
    "array without axes": np.array(1.5),
}
SMALL = {
    "text": "word",
    "other text": "\N{SNOWMAN}\ud800",
    "bytes": b"word",
    "none": None,
    "list": [1, 2],
    "tuple": (1.0, "x"),
    "enum": Phase.FIRST,
    "numbered enum": Level.LOW,
    "complex": 1j,
    "class": Fraction,
    "numpy text": np.str_("word"),
}
MAILED = {
    "date": np.datetime64("2020-01-01"),
    "long text": "word" * 50,
    "long list": [*range(200)],
    "function": lambda: None,
    "objects": np.array([1, None], object),
    "words": np.array(["a", "b"]),
    "foreign": np.arange(2, dtype=">i4"),
    # Without a unit, as gymnasium expects; NumPy 2.5 warns if it is made in another way.
    "difference": np.array([3]).view("m8")[0],
    "differences": np.array([3], "m8[s]"),
}


@pytest.mark.parametrize("name", COMPACT)
def test_number_or_plain_array_gets_a_column_after_its_first_step(name):
    batched = Batched(2)
    info = {name: COMPACT[name]}
    same(batched.step(info, {}), batched.of_gymnasium(info, {}))
    assert [env for env, _ in batched.mailed] == [0]
    assert [column.path for column in batched.infos.columns] == [(name,)]
    same(batched.step({}, info), batched.of_gymnasium({}, info))
    assert batched.mailed == []


@pytest.mark.parametrize("name", SMALL)
def test_small_object_gets_a_column_after_its_first_step(name):
    batched = Batched(3)
    info = {name: SMALL[name]}
    same(batched.step(info, {}, info), batched.of_gymnasium(info, {}, info))
    assert [env for env, _ in batched.mailed] == [0, 2]
    for _ in range(2):
        batch = batched.step({}, info, info)
        same(batch, batched.of_gymnasium({}, info, info))
        assert type(batch[name][1]) is type(SMALL[name])
        assert batched.mailed == []


def test_mutable_objects_are_not_shared():
    batched = Batched(2)
    info = {"list": [1, 2], "tuple": ([],)}
    for _ in range(2):
        batch = batched.step(info, info)
    assert batched.mailed == []
    batch["list"][0].append(3)
    batch["tuple"][0][0].append(3)
    same(batched.step(info, info), batched.of_gymnasium(info, info))


def test_objects_of_several_types_share_a_column_without_mail():
    batched = Batched(4)
    infos = {"x": None}, {"x": "red"}, {"x": np.bool_(1)}, {}
    for mailed in (3, 0, 0):
        same(batched.step(*infos), batched.of_gymnasium(*infos))
        assert len(batched.mailed) == mailed
        infos = (*infos[1:], infos[0])


def test_long_text_comes_by_mail():
    batched = Batched(1)
    for length in (1, 5, 500, 100, 0, 5000):
        info = {"text": "x" * length}
        same(batched.step(info), batched.of_gymnasium(info))
        assert len(batched.mailed) == (length in (1, 500, 5000))


def test_more_constants_than_the_cache_holds_are_batched():
    batched = Batched(2)
    for number in range(1000):
        infos = {"text": f"number {number}"}, {"text": f"number {number % 300}"}
        same(batched.step(*infos), batched.of_gymnasium(*infos))


def test_unreadable_object_raises_when_it_is_merged():
    batched = Batched(1)
    batched.step({"text": "x"})
    batched.step({"text": "x"})
    assert batched.mailed == []
    [rows] = [column.views(batched.frames)[0] for column in batched.infos.columns]
    rows[batched.frame, 0, :4] = 3, 0, 1, 2
    *_, infos, mixed = batched.access.read(batched.frame)
    assert mixed == ["text"]
    with pytest.raises(pickle.UnpicklingError):
        batched.infos.merge([(batched.frame, 0)], infos, mixed, [])


def test_keys_that_change_with_each_step_stop_getting_columns(caplog):
    batched = Batched(1)
    with caplog.at_level(logging.WARNING, "pysampler"):
        for number in range(1500):
            info = {f"number {number}": number, f"text {number}": "x" * 1000, "stays": 1.0}
            same(batched.step(info), batched.of_gymnasium(info))
    assert len(batched.infos.columns) == batched.infos.core.count <= 512
    assert len(batched.infos._unfit) <= 512
    assert len(caplog.records) == 1
    assert "more than 512 names" in caplog.messages[0]


@pytest.mark.parametrize("second", [2, 0, "word", np.zeros(2)])
@pytest.mark.parametrize("nested", [False, True])
def test_key_that_names_the_mask_of_another_is_batched(second, nested):
    batched = Batched(2)
    info = {"a": 1, "_a": second}
    infos = [{"in": info} if nested else info, {"in": {"a": 3}} if nested else {"a": 3}]
    for _ in range(3):
        try:
            expected = batched.of_gymnasium(*infos)
        except ValueError:
            with pytest.raises(ValueError, match=r"array|argument|literal|truth"):
                batched.step(*infos)
            continue
        same(batched.step(*infos), expected)


@pytest.mark.parametrize("value", [True, 1.5])
def test_array_without_axes_stays_an_array_when_merged(value):
    batched = Batched(2)
    infos = {"in": {"x": np.array(value)}}, {"in": {"x": np.array(value)}}
    batched.step(*infos)
    infos = infos[0], {"in": {"x": np.array(value), "new": "x" * 1000}}
    for _ in range(2):
        same(batched.step(*infos), batched.of_gymnasium(*infos))


@pytest.mark.parametrize("name", MAILED)
def test_other_values_get_no_column_and_come_by_mail(name):
    batched = Batched(2)
    info = {name: MAILED[name]}
    for _ in range(3):
        same(batched.step(info, {}), batched.of_gymnasium(info, {}))
        assert [env for env, _ in batched.mailed] == [0]
    assert batched.infos.columns == []


def test_non_string_keys_and_final_obs_get_no_columns():
    batched = Batched(1)
    batched.infos.learn([(0, {3: 1.0, "final_obs": np.zeros(2), ("a",): 2})])
    assert batched.infos.columns == []


def test_nested_dict_gets_a_mask_and_columns_for_its_values():
    batched = Batched(2)
    info = {"deep": {"x": 1, "inner": {"y": 2.0}}, "empty": {}}
    for mailed in (2, 0):
        same(batched.step(info, info), batched.of_gymnasium(info, info))
        assert len(batched.mailed) == mailed
    paths = [column.path for column in batched.infos.columns]
    assert paths == [
        ("deep",),
        ("deep", "x"),
        ("deep", "inner"),
        ("deep", "inner", "y"),
        ("empty",),
    ]
    assert [c.dtype is None for c in batched.infos.columns] == [True, False, True, False, True]


def test_columns_are_aligned_and_do_not_overlap():
    batched = Batched(3)
    batched.infos.learn([(0, COMPACT | {"deep": COMPACT})])
    begin = batched.frames.infos.__array_interface__["data"][0]
    end = 0
    assert len(batched.infos.columns) == 2 * len(COMPACT) + 1
    for column in batched.infos.columns:
        for view in reversed(column.views(batched.frames)):  # the mask comes first
            first = view.__array_interface__["data"][0] - begin
            assert first >= end, column
            assert first % view.dtype.alignment == 0, column
            assert view.shape[:2] == (2, 3)
            end = first + view.nbytes
    assert end <= len(batched.frames.infos)


# -- batches --------------------------------------------------------------------------------------


def test_values_with_and_without_a_column_are_batched_together():
    batched = Batched(4)
    batched.step({"x": 1}, {}, {}, {"only": 2.5})
    infos = {"x": 1}, {"x": "no number"}, {}, {"x": None, "only": 2.5}
    with pytest.raises(ValueError, match="invalid literal"):  # the first decides, as in gymnasium
        batched.step(*infos)
    infos = {"x": "no number"}, {"x": 1}, {}, {"x": None, "only": 2.5}
    batch = batched.step(*infos)
    same(batch, batched.of_gymnasium(*infos))
    assert batch["x"].tolist() == ["no number", 1, None, None]
    assert batch["_x"].tolist() == [True, True, False, True]
    assert batch["only"].tolist() == [0, 0, 0, 2.5]
    assert batched.mailed == [(0, {"x": "no number"}), (3, {"x": None})]


def test_merge_reads_the_rows_of_the_chosen_envs():
    batched = Batched(4)
    batched.step({"x": 1}, {"x": 2}, {"x": 3}, {"x": 4})
    batched.step({"x": "zero"}, {"x": 6}, {"x": "two"}, {"x": 8})
    batched.gymnasium.num_envs = 2
    for frame, expected in ((1 - batched.frame, None), (batched.frame, 8)):  # columns came later
        rows = [(batched.frame, 2), (frame, 3)]
        infos = batched.infos.merge(rows, {"x": "stale"}, ["x"], batched.mailed)
        assert infos["x"].tolist() == ["two", expected]
        assert infos["_x"].tolist() == [True, expected is not None]


def test_key_gets_columns_for_four_types_and_mail_for_the_fifth(caplog):
    batched = Batched(2)
    values = [1, 0.5, True, np.float32(3), np.int8(4)]
    with caplog.at_level(logging.WARNING, "pysampler"):
        for value in values + values:
            same(batched.step({"x": value}, {}), batched.of_gymnasium({"x": value}, {}))
    assert [column.dtype.char for column in batched.infos.columns] == ["l", "d", "?", "f"]
    assert [env for env, _ in batched.mailed] == [0]
    assert [record.getMessage() for record in caplog.records] == [
        (
            "pysampler: info['x'] is pickled with every step, which is slow: it has values of more "
            "than 4 types"
        )
    ]


def test_value_too_large_for_its_column_comes_by_mail():
    batched = Batched(1)
    batched.step({"n": 1})
    batched.step({"n": 2})
    assert batched.mailed == []
    with pytest.raises(OverflowError):  # gymnasium's: it is merged, not truncated
        batched.step({"n": 1 << 70})
    assert batched.mailed == [(0, {"n": 1 << 70})]


def test_values_without_room_come_by_mail(caplog):
    batched = Batched(2, room=4096)
    info = {"small": 1, "large": np.zeros(2000), "late": 2.0}
    with caplog.at_level(logging.WARNING, "pysampler"):
        for _ in range(2):
            same(batched.step(info, info), batched.of_gymnasium(info, info))
    assert [column.path for column in batched.infos.columns] == [("small",), ("late",)]
    assert [list(info) for _, info in batched.mailed] == [["large"]] * 2
    [record] = caplog.records
    assert "['large'] is pickled with every step" in record.getMessage()
    assert "no space left for infos" in record.getMessage()


def test_value_that_never_gets_a_column_is_logged_once_and_late(caplog):
    batched = Batched(1)
    info = {"deep": {"word": "x" * 1000}}
    with caplog.at_level(logging.WARNING, "pysampler"):
        for _ in range(999):
            batched.infos.learn([(0, info)])
        assert caplog.messages == []
        for _ in range(2000):
            batched.infos.learn([(0, info)])
    [message] = caplog.messages
    assert message == (
        "pysampler: info['deep']['word'] is pickled with every step, which is slow: str, expected "
        "a number, an array, or something whose pickle has fewer than 128 bytes"
    )


def test_slow_key_is_logged_once_per_program(caplog):
    with caplog.at_level(logging.WARNING, "pysampler"):
        for key in ("a", "b", "a"):
            infos = Batched(1).infos
            for _ in range(1000):
                infos.learn([(0, {key: "x" * 1000})])
    assert [message.split()[1] for message in caplog.messages] == ["info['a']", "info['b']"]


def test_nothing_is_logged_if_nothing_is_pickled(caplog):
    batched = Batched(1)
    infos = Infos(batched.frames, [], batched.add_info, pickled=False)
    with caplog.at_level(logging.WARNING, "pysampler"):
        for number in range(1000):
            infos.learn([(0, {"a": "x", f"b{number}": 1})])
    assert caplog.messages == []
    assert ("a",) not in [column.path for column in infos.columns]


def test_learn_returns_each_new_column_once():
    batched = Batched(1)
    new = batched.infos.learn([(0, {"a": 1}), (0, {"a": 2, "b": 0.5})])
    assert [column.path for column in new] == [("a",), ("b",)]
    assert batched.infos.learn([(0, {"a": 1, "b": 0.5})]) == []
    assert batched.infos.core.count == 2


keys = st.sampled_from(["a", "b", "_a"])
arrays = st.builds(np.full, st.just(2), st.integers(0, 3)) | st.just(np.zeros((2,), np.float32))
names = st.sampled_from([*COMPACT, *COMPACT, *SMALL, *SMALL, *MAILED])
values = names.map((COMPACT | SMALL | MAILED).__getitem__) | arrays


def dicts(values):
    """Return infos with "a" or "_a", its mask: the order of both in one dict is not preserved."""
    made = st.dictionaries(keys, values, max_size=3)
    return made.map(lambda info: {key: info[key] for key in info if f"_{key}" not in info})


infos = st.recursive(dicts(values), lambda inner: dicts(values | inner), max_leaves=6)


@pytest.mark.slow
@settings(max_examples=60, derandomize=True)
@given(st.lists(st.tuples(infos, infos, infos), min_size=2, max_size=5))
@pytest.mark.filterwarnings("ignore")  # NumPy's, about lossy casts
def test_any_infos_are_batched_as_in_gymnasium(steps):
    batched = Batched(3)
    for step in steps:
        try:
            expected = batched.of_gymnasium(*copy.deepcopy(step))
        except Exception:  # gymnasium rejects some mixtures; the envs step anyway
            expected = None
        try:
            batch = batched.step(*step)
        except Exception:
            assert expected is None
            return
        if expected is not None:
            same(batch, expected)
