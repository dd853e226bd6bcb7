"""The ring of frames: the offsets of its arrays, and rows shared between mappings."""

import resource
import weakref

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from pysampler import _core
from pysampler._frames.frames import Frames, Plan, info_bytes
from pysampler._frames.spec import Field, Spec, spec_of
from pysampler.sync import Segment

LINE = 128  # bytes: a cache line, and the next one, which the CPU fetches with it
SPARE = 1024

dtypes = st.sampled_from(list("?bHiqefdFD")).map(np.dtype)
fields = st.lists(
    st.builds(Field, st.lists(st.integers(0, 5), max_size=3).map(tuple), dtypes), max_size=3
).map(tuple)
plans = st.builds(
    lambda observations, actions, **kwargs: Plan(
        Spec(("tuple", ()), observations, 0, ("tuple", ()), actions, 0), **kwargs
    ),
    fields,
    fields,
    envs=st.integers(1, 9),
    count=st.integers(1, 5),
    final=st.booleans(),
    extras=fields,
    infos=st.sampled_from([0, 1 << 12]),
)


def plain(count=3, envs=4, *, infos=0, **kwargs):
    spec = spec_of(spaces.Dict(x=spaces.Box(0, 1, (2,)), n=spaces.Discrete(3)), spaces.Discrete(5))
    return Plan(spec, envs, count, final=False, infos=infos, **kwargs)


def laid_out(plan):
    segment = Segment(plan.size + SPARE, plan.infos)
    return Frames(plan, segment), segment


def arrays(frames):
    """Yield names and arrays, except the infos, in the order of the plan's fields."""
    left = {}
    for name, _, _ in frames.plan.fields:
        value = getattr(frames, name)
        yield (
            name,
            left.setdefault(name, list(value) if isinstance(value, list) else [value]).pop(0),
        )


def place(array):
    """Return the address of an array, and the first address after it."""
    begin = array.__array_interface__["data"][0]
    return begin, begin + array.nbytes


@settings(max_examples=40, derandomize=True)
@given(plans)
def test_arrays_share_no_cache_line_and_fit_the_plan(plan):
    frames, _ = laid_out(plan)
    begin, end = place(frames.memory)
    assert end - begin == plan.size
    assert begin % LINE == 0
    for (name, shape, dtype), (_, array) in zip(plan.fields, arrays(frames), strict=True):
        assert array.shape == (plan.count, *shape), name
        assert array.dtype == dtype, name
        if array.nbytes:
            first, last = place(array)
            assert first >= begin, name  # after the last line of the previous array
            assert first % LINE == 0, name
            assert last <= end, name
            begin = last
    assert not frames.memory.any()


def attached(frames, segment):
    """Return the same frames in another mapping of the segment, like another process."""
    return Frames(frames.plan, _core.Segment.attach(segment.fd), frames.offset)


@settings(max_examples=40, derandomize=True)
@given(plans)
def test_writes_appear_in_the_same_array_of_another_mapping(plan):
    frames, segment = laid_out(plan)
    other = attached(frames, segment)
    assert not np.shares_memory(frames.memory, other.memory)
    for n, (_, array) in enumerate(arrays(frames), start=1):
        array.reshape(-1).view(np.uint8)[:] = n % 2 if array.dtype == np.bool_ else n
    for n, (name, array) in enumerate(arrays(other), start=1):
        assert (
            array.reshape(-1).view(np.uint8) == (n % 2 if array.dtype == np.bool_ else n)
        ).all(), name


def test_two_mappings_share_their_rows():
    frames, segment = laid_out(plain(infos=1 << 17))
    other = attached(frames, segment)
    frames.take_infos(1000)
    frames.rewards[1] = [1, 2, 3, 4]
    frames.observations[0][2, 3] = 7
    frames.infos[999] = 5
    assert other.rewards.tolist() == [[0] * 4, [1, 2, 3, 4], [0] * 4]
    assert other.observations[0][2].tolist() == [[0, 0], [0, 0], [0, 0], [7, 7]]
    assert other.infos[998:1001].tolist() == [0, 5, 0]


def test_final_observations_have_arrays_only_in_same_step_mode():
    ours, _ = laid_out(plain())
    assert ours.final_observations == []
    spec = ours.spec
    others, _ = laid_out(Plan(spec, 4, 3, final=True))
    assert [a.shape for a in others.final_observations] == [a.shape for a in others.observations]


def test_consecutive_frames_are_a_contiguous_rollout():
    frames, _ = laid_out(plain(count=5))
    assert all(array.flags.c_contiguous for _, array in arrays(frames))
    assert frames.rewards[1:4].shape == (3, 4)


# -- actions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i1", "i4", "u8", "f8", "c8"])
def test_actions_keep_any_dtype_of_up_to_eight_bytes(dtype):
    spec = spec_of(spaces.Discrete(2), spaces.Box(-1, 1, (3,), np.float16))
    frames, _ = laid_out(Plan(spec, 4, 2, final=False))
    given = np.arange(24).reshape(2, 4, 3).astype(dtype)
    frames.actions_as(0, given.dtype)[:] = given
    again = frames.actions_as(0, given.dtype)
    assert again.dtype == dtype
    np.testing.assert_array_equal(again, given)
    assert [array.dtype for array in frames.actions] == [np.float16]
    assert frames.actions_as(0, np.dtype(np.float16)) is frames.actions[0]


def test_action_offset_does_not_depend_on_other_dtypes():
    """Groups that step at the same time can have actions of different dtypes."""
    spec = spec_of(spaces.Discrete(2), spaces.Box(-1, 1, (3,), np.float32))
    frames, _ = laid_out(Plan(spec, 5, 2, final=False))
    dtypes = [np.dtype(name) for name in ("f4", "f8", "i1", "f2", "i8")]
    for env, dtype in enumerate(dtypes):
        frames.actions_as(0, dtype)[1, env] = env + 1
    for env, dtype in enumerate(dtypes):
        assert frames.actions_as(0, dtype)[1, env].tolist() == [env + 1] * 3


def test_each_frame_has_its_own_actions():
    frames, _ = laid_out(plain())
    frames.actions[0][1] = -1
    assert frames.actions[0].tolist() == [[0] * 4, [-1] * 4, [0] * 4]


# -- infos ----------------------------------------------------------------------------------------


def test_infos_are_the_last_array_of_the_segment():
    frames, segment = laid_out(plain(infos=1 << 17))
    begin, end = place(frames.infos)
    assert end - begin == 1 << 17
    assert begin >= place(frames.memory)[1]
    assert frames.offset + (end - place(frames.memory)[0]) == segment.size


def test_memory_of_infos_grows_in_chunks():
    frames, _ = laid_out(plain(infos=1 << 18))
    sizes = []
    for size in (0, 1, 1, 1000, 1 << 16, (1 << 16) + 1, 1 << 18):
        frames.take_infos(size)
        taken = place(frames.memory)[1] - place(frames.infos)[0]
        sizes.append(taken if size else None)
        frames.infos[:size] = 1
    chunk = 1 << 16
    assert sizes == [None, chunk, chunk, chunk, chunk, 2 * chunk, 4 * chunk]
    assert place(frames.memory)[1] == place(frames.infos)[1]


def test_smaller_memory_of_infos_lives_as_long_as_the_frames():
    frames, _ = laid_out(plain(infos=1 << 18))
    known = []
    for size in (1, 1 << 17, 1 << 18):
        frames.take_infos(size)
        known.append(weakref.ref(frames.memory))
    assert all(one() is not None for one in known)
    del frames
    assert all(one() is None for one in known)


def test_limited_address_space_reserves_fewer_info_bytes(monkeypatch):
    free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: free)
    assert info_bytes(100, 3) == 300 * 8192
    limit = {resource.RLIMIT_AS: (1 << 40, 1 << 40)}
    monkeypatch.setattr(resource, "getrlimit", lambda of: limit.get(of, free))
    assert info_bytes(100, 3) == 300 * 1024
    assert info_bytes(1, 1) == 1 << 16  # a page or more in any case
