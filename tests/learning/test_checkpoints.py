"""Checkpoints restore every bit that was saved, and named files are always complete."""

import json
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter, OrderedDict

import numpy as np
import pytest
from checkpoints_in_tests import Holder, make_replay, names
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from made_up import same

from pysampler._learning.checkpoints import Checkpoints


def bits(value):
    """Return the types, order and bits of a tree in a form that compares."""
    kind = type(value)
    if isinstance(value, dict):
        return kind, [(bits(key), bits(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return kind, [bits(one) for one in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return kind, value.dtype, value.shape, value.tobytes()
    return kind, repr(value) if isinstance(value, (float, complex)) else value


# -- round trips -----------------------------------------------------------------------------------


DTYPES = ["?", "i1", "u8", "f2", ">f4", "f8", "c16", "U3", "S2", "M8[ms]", "i4,f8"]


NUMBERS = st.one_of(
    st.sampled_from(["?", "u1", "i8", "f4", "c8"]).flatmap(
        lambda dtype: st_np.from_dtype(np.dtype(dtype))
    )
)


LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text()),
    *(st.just(np.float64("-nan")), st.just(-0.0), st.integers(0).map(lambda n: -(1 << n % 5000))),
    *(NUMBERS, st.sampled_from(DTYPES).flatmap(lambda d: st_np.arrays(d, st_np.array_shapes()))),
)


KEYS = st.one_of(st.text(), st.integers())


TREES = st.recursive(
    LEAVES,
    lambda trees: st.one_of(
        *(st.lists(trees), st.lists(trees).map(tuple), st.dictionaries(KEYS, trees)),
        st.dictionaries(KEYS, trees).map(OrderedDict),
        st.dictionaries(KEYS, st.integers()).map(Counter),
    ),
    max_leaves=10,
)


@pytest.mark.slow
@settings(max_examples=100)
@given(tree=TREES)
def test_any_tree_round_trips(tree):
    with tempfile.TemporaryDirectory() as directory:
        checkpoints = Checkpoints(directory)
        checkpoints.save(1, tree=tree, held=Holder(tree))
        held = Holder(None)
        rest = checkpoints.restore(held=held)
    assert rest.keys() == {"tree", "step"}
    assert bits(rest["tree"]) == bits(held.state) == bits(tree)


def test_a_dtype_with_a_long_description_round_trips(tmp_path):
    array = np.zeros(2, [(f"{i} \N{GREEK SMALL LETTER PI}", "f4", (2,)) for i in range(1000)])
    Checkpoints(tmp_path).save(0, array=array)
    same(Checkpoints(tmp_path).restore()["array"], array)


def test_unusual_arrays_and_numbers_round_trip(tmp_path):
    tree = {
        "column order": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "every other": np.arange(10)[::2],
        "none": np.zeros((0, 3)),
        "alone": np.array(3.5),
        "huge": -(7**9999),  # more digits than Python converts to decimals
        "list": ["list", 1],  # looks like an encoded node
    }
    Checkpoints(tmp_path).save(0, tree=tree)
    back = Checkpoints(tmp_path).restore()["tree"]
    assert back.pop("huge") == tree.pop("huge")
    same(tree, back)
    back["alone"][...] = 1  # writable, with memory of its own


def test_parts_may_be_named_like_arguments(tmp_path):
    parts = {"self": 1, "file": 2, "about": 3, "allow_pickle": 4, "parts": 5}
    Checkpoints(tmp_path).save(3, **parts)
    assert Checkpoints(tmp_path).restore() == {**parts, "step": 3}
    held = Holder(None)
    rest = Checkpoints(tmp_path).restore(self=held)
    assert (held.state, "self" in rest) == (1, False)


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_a_restored_generator_continues_its_stream(kind, tmp_path):
    def make(seed):
        return np.random.Generator(getattr(np.random, kind)(seed))

    generator, other = make(1), make(2)
    generator.integers(100, size=3, dtype=np.uint32)  # leaves half a number buffered
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, generator=generator)
    assert checkpoints.restore(generator=other) == {"step": 1}
    for _ in range(3):
        assert generator.integers(100, dtype=np.uint32) == other.integers(100, dtype=np.uint32)
        assert generator.normal() == other.normal()


def test_a_restored_replay_continues_its_samples(tmp_path):
    replay = make_replay()
    replay.sample(3)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, replay=replay, episodes=12)
    rest = checkpoints.restore()
    assert (rest["episodes"], rest["step"]) == (12, 7)
    for _ in range(3):
        ours, theirs = replay.sample(10), rest["replay"].sample(10)
        np.testing.assert_array_equal(ours.indices, theirs.indices)
        np.testing.assert_array_equal(ours.fields["x"], theirs.fields["x"])


def test_a_checkpoint_file_is_an_archive_of_arrays(tmp_path):
    path = Checkpoints(tmp_path).save(1, x=[np.zeros(3), np.ones(2)], y={"a": (1, None)})
    with zipfile.ZipFile(path) as archive:
        assert {"0.npy", "1.npy", "about.npy"} <= {*archive.namelist()}
    with np.load(path, allow_pickle=False) as arrays:
        about = json.loads(arrays["about"].tobytes())
    assert (about["format"], about["step"]) == ("pysampler checkpoint 3", 1)


# -- torch -----------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="tensors and modules are torch's")


def learner(torch, seed):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        *(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)),
        torch.nn.Linear(8, 2),
    )
    optimizer = torch.optim.Adam(
        [{"params": net[0].parameters()}, {"params": net[3].parameters(), "lr": 0.1}], lr=0.01
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 8, 8])
    return net, optimizer, schedule


def learn(torch, net, optimizer, schedule, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        (net(torch.randn(16, 4)) ** 2).mean().backward()
        optimizer.step()
        schedule.step()


@pytest.mark.slow
def test_resumed_training_equals_uninterrupted_training(torch, tmp_path):
    net, optimizer, schedule = learner(torch, 1)
    learn(torch, net, optimizer, schedule, 5)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(
        5, net=net, optimizer=optimizer, schedule=schedule, torch_state=torch.get_rng_state()
    )
    learn(torch, net, optimizer, schedule, 5)
    new = dict(zip(("net", "optimizer", "schedule"), learner(torch, 2), strict=True))
    rest = checkpoints.restore(**new)
    assert rest.keys() == {"torch_state", "step"}
    torch.set_rng_state(rest["torch_state"])
    learn(torch, *new.values(), 5)
    for ours, theirs in zip(net.state_dict().items(), new["net"].state_dict().items(), strict=True):
        assert ours[0] == theirs[0]
        assert torch.equal(ours[1], theirs[1])
    for ours, theirs in (
        (schedule.state_dict(), new["schedule"].state_dict()),
        (optimizer.state_dict()["param_groups"], new["optimizer"].state_dict()["param_groups"]),
    ):
        same(ours, theirs)
    assert new["schedule"].milestones == Counter([3, 8, 8])


@pytest.mark.parametrize(
    "dtype",
    [
        *("float32", "float64", "float16", "bfloat16", "complex64", "bool", "uint8", "int64"),
        *("float8_e5m2", "float8_e4m3fn"),
    ],
)
def test_tensors_round_trip_with_dtype_and_bits(dtype, torch, tmp_path):
    dtype = getattr(torch, dtype)
    numbers = torch.arange(6, dtype=torch.float32).reshape(2, 3).to(dtype)
    tensors = [numbers, numbers.T, numbers[1, 2], numbers[:0], numbers[:, 1]]
    if dtype.is_complex:
        tensors += [(numbers * (1 + 2j)).conj(), (numbers * (1 + 2j)).conj().imag]
    if dtype.is_floating_point:
        tensors += [torch.tensor([torch.nan, -torch.inf, -0.0]).to(dtype)]
    Checkpoints(tmp_path).save(1, tensors=tensors)
    for tensor, back in zip(tensors, Checkpoints(tmp_path).restore()["tensors"], strict=True):
        assert type(back) is torch.Tensor
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        ours, theirs = (t.resolve_conj().resolve_neg().reshape(-1) for t in (tensor, back))
        assert torch.equal(ours.contiguous().view(torch.uint8), theirs.view(torch.uint8))


def test_parameters_become_tensors_and_arrays_stay_arrays(torch, tmp_path):
    Checkpoints(tmp_path).save(1, both=(torch.nn.Parameter(torch.ones(2)), np.ones(2)))
    tensor, array = Checkpoints(tmp_path).restore()["both"]
    assert (type(tensor), tensor.requires_grad, type(array)) == (torch.Tensor, False, np.ndarray)


def test_module_state_keeps_its_version_metadata(torch, tmp_path):
    class Versioned(torch.nn.Linear):
        _version = 3

        def _load_from_state_dict(self, state, prefix, metadata, *rest):
            self.found = metadata.get("version")
            super()._load_from_state_dict(state, prefix, metadata, *rest)

    Checkpoints(tmp_path).save(1, net=torch.nn.Sequential(Versioned(2, 2)))
    net = torch.nn.Sequential(Versioned(2, 2))
    Checkpoints(tmp_path).restore(net=net)
    assert net[0].found == 3


def test_missing_torch_raises_import_error_on_restore(torch, tmp_path, monkeypatch):
    Checkpoints(tmp_path).save(1, x=torch.zeros(3))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="torch"):
        Checkpoints(tmp_path).restore()


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_sparse_and_meta_tensors_are_refused(kind, torch, tmp_path):
    tensor = torch.zeros(3, device="meta") if kind == "meta" else torch.zeros(3).to_sparse()
    with pytest.raises(TypeError, match=r"tree\['x'\] is a sparse, quantized or meta tensor"):
        Checkpoints(tmp_path).save(1, tree={"x": tensor})


@pytest.mark.slow
def test_without_tensors_torch_is_not_imported(tmp_path):
    code = """if True:
        import sys
        import numpy as np
        from pysampler._learning.checkpoints import Checkpoints
        checkpoints = Checkpoints(sys.argv[1])
        checkpoints.save(1, x=np.zeros(3), random=np.random.default_rng(1))
        assert checkpoints.restore(random=np.random.default_rng(2)).keys() == {"x", "step"}
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)


# -- files in the directory ------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_checkpoints_are_kept(keep, tmp_path):
    checkpoints = Checkpoints(tmp_path / "a" / "b", keep=keep)
    assert (checkpoints.steps(), checkpoints.latest, checkpoints.restore()) == ([], None, None)
    assert not (tmp_path / "a").exists()
    steps = [0, 7, 8, 10**12 - 1, 10**12, 10**13]
    for done, step in enumerate(steps, 1):
        path = checkpoints.save(step, x=step)
        assert path == tmp_path / "a" / "b" / f"checkpoint-{step:012d}.npz"
        assert checkpoints.steps() == steps[max(0, done - keep) : done]
        assert checkpoints.latest == step
        assert checkpoints.restore() == {"x": step, "step": step}
    for step in checkpoints.steps():
        assert checkpoints.restore(step=np.int64(step)) == {"x": step, "step": step}
    assert len(names(path.parent)) == min(keep, len(steps))


def test_other_files_in_the_directory_are_left_alone(tmp_path):
    others = [
        *("checkpoint-1.npz", "checkpoint-0000000000001.npz", "checkpoint-000000000001"),
        *("checkpoint-000000000001.npz.bak", ".replay.npz.0123456789abcdef.saving", "notes"),
    ]
    for name in others:
        (tmp_path / name).touch()
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.restore() is None
    for step in (1, 2):
        checkpoints.save(step)
    assert names(tmp_path) == sorted([*others, "checkpoint-000000000002.npz"])
    assert checkpoints.restore() == {"step": 2}


@pytest.mark.parametrize("what", ["link", "broken link", "directory"])
def test_a_link_or_directory_in_place_of_an_old_checkpoint_is_harmless(what, tmp_path):
    checkpoints = Checkpoints(tmp_path / "here", keep=1)
    path = checkpoints.save(1, x=1)
    elsewhere = path.rename(tmp_path / "another disk")
    if what == "directory":
        path.mkdir()
    else:
        path.symlink_to(elsewhere if what == "link" else tmp_path / "nothing")
    left = [path.name] * (what == "directory")  # not ours to remove
    for step in (2, 3):
        checkpoints.save(step, x=step)
        assert names(tmp_path / "here") == [*left, f"checkpoint-{step:012d}.npz"]
        assert checkpoints.restore() == {"x": step, "step": step}
    assert elsewhere.is_file()  # the link is removed, its target stays


def test_files_of_a_killed_save_are_removed_by_the_next(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    (tmp_path / ".checkpoint-000000000001.npz.0123456789abcdef.saving").touch()
    checkpoints.save(2, x=2)
    assert names(tmp_path) == ["checkpoint-000000000002.npz"]


def test_an_unreadable_directory_raises(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        Checkpoints(tmp_path / "file").restore()
