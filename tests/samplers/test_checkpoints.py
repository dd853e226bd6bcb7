"""What is saved comes back bit by bit, and what has the name of a checkpoint is whole."""

import inspect
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from made_up import same

from pysampler import ReplayBuffer
from pysampler._learning.checkpoints import Checkpoints
from pysampler.errors import LayoutError

ROUNDS = int(os.environ.get("PYSAMPLER_FAULT_ROUNDS", "5"))
SEED = int(os.environ.get("PYSAMPLER_FAULT_SEED", str(random.SystemRandom().randrange(1 << 32))))


class Pair(NamedTuple):
    x: int
    y: int


class Holder:
    """Anything with a state."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def make_replay(count=20, capacity=16):
    like = {"x": np.zeros(3, np.float32), "next_x": np.zeros(3, np.float32)}
    replay = ReplayBuffer(capacity, like, seed=5)
    x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
    none = np.zeros(count)
    replay.add(
        {"x": x, "next_x": x + 1}, rewards=x[:, 0], terminated=none, truncated=none, env=none
    )
    return replay


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def bits(value):
    """Type, order and every bit of a tree, as what can be compared."""
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
@settings(deadline=None, max_examples=100)
@given(tree=TREES)
def test_a_tree_comes_back_as_it_was(tree):
    with tempfile.TemporaryDirectory() as directory:
        checkpoints = Checkpoints(directory)
        checkpoints.save(1, tree=tree, held=Holder(tree))
        held = Holder(None)
        rest = checkpoints.restore(held=held)
    assert rest.keys() == {"tree", "step"}
    assert bits(rest["tree"]) == bits(held.state) == bits(tree)


def test_a_dtype_with_a_long_description_comes_back(tmp_path):
    array = np.zeros(2, [(f"{i} \N{GREEK SMALL LETTER PI}", "f4", (2,)) for i in range(1000)])
    Checkpoints(tmp_path).save(0, array=array)
    same(Checkpoints(tmp_path).restore()["array"], array)


def test_odd_arrays_and_numbers_come_back(tmp_path):
    tree = {
        "column order": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "every other": np.arange(10)[::2],
        "none": np.zeros((0, 3)),
        "alone": np.array(3.5),
        "huge": -(7**9999),  # of more digits than Python makes decimals of
        "list": ["list", 1],  # what might be taken for a node
    }
    Checkpoints(tmp_path).save(0, tree=tree)
    back = Checkpoints(tmp_path).restore()["tree"]
    assert back.pop("huge") == tree.pop("huge")
    same(tree, back)
    back["alone"][...] = 1  # nobody else's memory, and writable


def test_the_same_names_as_those_of_arguments(tmp_path):
    parts = {"self": 1, "file": 2, "about": 3, "allow_pickle": 4, "parts": 5}
    Checkpoints(tmp_path).save(3, **parts)
    assert Checkpoints(tmp_path).restore() == {**parts, "step": 3}
    held = Holder(None)
    rest = Checkpoints(tmp_path).restore(self=held)
    assert (held.state, "self" in rest) == (1, False)


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_a_generator_goes_on(kind, tmp_path):
    def make(seed):
        return np.random.Generator(getattr(np.random, kind)(seed))

    generator, other = make(1), make(2)
    generator.integers(100, size=3, dtype=np.uint32)  # which leaves half a number
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, generator=generator)
    assert checkpoints.restore(generator=other) == {"step": 1}
    for _ in range(3):
        assert generator.integers(100, dtype=np.uint32) == other.integers(100, dtype=np.uint32)
        assert generator.normal() == other.normal()


def test_a_replay_is_returned_and_goes_on(tmp_path):
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


def test_a_file_is_an_archive_of_arrays_alone(tmp_path):
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
def test_training_continues_as_if_it_had_never_stopped(torch, tmp_path):
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
def test_tensors_come_back_as_tensors(dtype, torch, tmp_path):
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


def test_a_parameter_comes_back_as_a_tensor_and_an_array_as_an_array(torch, tmp_path):
    Checkpoints(tmp_path).save(1, both=(torch.nn.Parameter(torch.ones(2)), np.ones(2)))
    tensor, array = Checkpoints(tmp_path).restore()["both"]
    assert (type(tensor), tensor.requires_grad, type(array)) == (torch.Tensor, False, np.ndarray)


def test_a_module_learns_which_version_its_state_is_of(torch, tmp_path):
    class Versioned(torch.nn.Linear):
        _version = 3

        def _load_from_state_dict(self, state, prefix, metadata, *rest):
            self.found = metadata.get("version")
            super()._load_from_state_dict(state, prefix, metadata, *rest)

    Checkpoints(tmp_path).save(1, net=torch.nn.Sequential(Versioned(2, 2)))
    net = torch.nn.Sequential(Versioned(2, 2))
    Checkpoints(tmp_path).restore(net=net)
    assert net[0].found == 3


def test_that_there_is_no_torch_is_no_damage(torch, tmp_path, monkeypatch):
    Checkpoints(tmp_path).save(1, x=torch.zeros(3))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="torch"):
        Checkpoints(tmp_path).restore()


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_odd_tensors_are_refused(kind, torch, tmp_path):
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


# -- which there are -------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_are_kept(keep, tmp_path):
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


def test_what_else_lies_there_is_left_alone(tmp_path):
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
def test_an_old_checkpoint_that_was_moved_elsewhere_harms_none_that_follows(what, tmp_path):
    checkpoints = Checkpoints(tmp_path / "here", keep=1)
    path = checkpoints.save(1, x=1)
    elsewhere = path.rename(tmp_path / "another disk")
    if what == "directory":
        path.mkdir()
    else:
        path.symlink_to(elsewhere if what == "link" else tmp_path / "nothing")
    left = [path.name] * (what == "directory")  # which is not ours
    for step in (2, 3):
        checkpoints.save(step, x=step)
        assert names(tmp_path / "here") == [*left, f"checkpoint-{step:012d}.npz"]
        assert checkpoints.restore() == {"x": step, "step": step}
    assert elsewhere.is_file()  # the link goes, not what it leads to


def test_what_a_killed_save_left_goes_with_the_next(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    (tmp_path / ".checkpoint-000000000001.npz.0123456789abcdef.saving").touch()
    checkpoints.save(2, x=2)
    assert names(tmp_path) == ["checkpoint-000000000002.npz"]


def test_a_directory_that_cannot_be_listed_is_not_one_without_checkpoints(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        Checkpoints(tmp_path / "file").restore()


# -- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "place", "what"),
    [
        (object(), "part", "a object, expected dicts"),
        ({"a": [1, {2, 3}]}, r"part\['a'\]\[1\]", "a set"),
        ({"a": {3: b"x"}}, r"part\['a'\]\[3\]", "a bytes"),
        ([Pair(1, 2)], r"part\[0\]", "a Pair"),
        ({(1, 2): 3}, "part", r"a dict with the key \(1, 2\), expected keys that are str or int"),
        ({True: 3}, "part", "a dict with the key True"),
        ([np.array([None])], r"part\[0\]", "an array of object"),
        ([np.zeros(1, "i4,O")], r"part\[0\]", "an array of "),
        (np.ma.zeros(3), "part", "a MaskedArray"),
        ([np.random.default_rng(1)], r"part\[0\]", "a Generator"),
        ([Holder(1)], r"part\[0\]", "a Holder"),
        ([make_replay(1)], r"part\[0\]", "a Replay"),
        (Holder({"x": object()}), r"part\['x'\]", "a object"),
    ],
)
def test_what_has_no_form_is_refused_before_anything_is_written(part, place, what, tmp_path):
    checkpoints = Checkpoints(tmp_path / "new")
    with pytest.raises(TypeError, match=f"^cannot save checkpoint: {place} is {what}"):
        checkpoints.save(1, fine=np.zeros(3), replay=make_replay(1), part=part)
    assert names(tmp_path) == []


def test_a_tree_within_itself_is_refused(tmp_path):
    tree = {"x": [1]}
    tree["x"].append(tree)
    with pytest.raises(TypeError, match=r"part\['x'\]\[1\]\['x'\] is nested without end"):
        Checkpoints(tmp_path).save(1, part=tree)
    deep = 0
    for _ in range(99):
        deep = [deep]
    Checkpoints(tmp_path).save(1, part=deep)
    assert Checkpoints(tmp_path).restore()["part"] == deep
    with pytest.raises(TypeError, match="at most 100 levels"):
        Checkpoints(tmp_path).save(2, part=[deep])


@pytest.mark.parametrize("keep", [0, -1, 1.5, True, None])
def test_a_bad_keep(keep, tmp_path):
    with pytest.raises(ValueError, match=f"keep {keep}, expected a whole number of at least 1"):
        Checkpoints(tmp_path, keep=keep)


@pytest.mark.parametrize("step", [-1, 1.0, True, None, "1"])
def test_a_bad_step(step, tmp_path):
    with pytest.raises(ValueError, match=f"step {step!r}, expected a whole number of at least 0"):
        Checkpoints(tmp_path).save(step)


@pytest.mark.parametrize("name", ["step", "a/b", "", "..", "a b"])
def test_a_bad_name(name, tmp_path):
    with pytest.raises(ValueError, match=f"part {name!r}, expected a name other than 'step'"):
        Checkpoints(tmp_path).save(1, **{name: 1})


def test_a_checkpoint_is_newer_than_those_there_are(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, x=1)
    for step in (4, 5):
        with pytest.raises(ValueError, match=f"step {step}, expected a whole number of more than"):
            checkpoints.save(step, x=2)
    assert checkpoints.restore() == {"x": 1, "step": 5}


def test_nothing_is_handed_over_unless_all_can_be(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    saved = {"held": Holder({"a": 1}), "random": np.random.default_rng(1), "number": 3}
    checkpoints.save(5, **saved, replay=make_replay())
    checkpoints.save(6, **saved, replay=make_replay())
    held = Holder("as before")
    twister = np.random.Generator(np.random.MT19937(1))
    for error, text, parts in (
        (ValueError, r"cannot restore critic: not in .* step 6, .* \['held', 'n", {"critic": held}),
        (ValueError, "state of 'PCG64', expected 'MT19937'", {"random": twister}),
        (ValueError, "state of None, expected 'PCG64'", {"held": np.random.default_rng()}),
        (ValueError, "state of 'int', expected 'PCG64'", {"number": np.random.default_rng()}),
        (
            TypeError,
            "a ReplayBuffer into a ReplayBuffer, .* is returned",
            {"replay": make_replay()},
        ),
        (TypeError, "a ReplayBuffer into a Holder", {"replay": held}),
        (TypeError, "a int into a int", {"number": 5}),
        (ValueError, r"no step 4, expected one of \[5, 6\]", {"step": 4}),
    ):
        given = {"held": held, **parts}
        with pytest.raises(error, match=text):
            checkpoints.restore(**given)
        assert held.state == "as before"


# -- damage ----------------------------------------------------------------------------------------

TREE = {"x": np.arange(10), "y": ["text", float("nan")], "z": np.float32(2)}


def saved_one(directory):
    checkpoints = Checkpoints(directory)
    for step in (1, 2):
        path = checkpoints.save(step, held=Holder(TREE), replay=make_replay())
    return checkpoints, path


def refuses(checkpoints, file):
    """Whether it is refused; what is not comes back whole."""
    held = Holder("as before")
    try:
        rest = checkpoints.restore(held=held)
    except LayoutError as error:
        assert repr(str(file)) in str(error)
        assert held.state == "as before"
        return True
    assert rest.keys() == {"replay", "step"}
    same(held.state, TREE)
    ours, theirs = make_replay().sample(50), rest["replay"].sample(50)
    np.testing.assert_array_equal(ours.fields["x"], theirs.fields["x"])
    return False


@pytest.mark.parametrize("part", [0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(part, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    assert refuses(checkpoints, path)
    assert checkpoints.restore(step=1)["step"] == 1


@pytest.mark.parametrize("part", [0, 0.2, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("garbage", [bytes(64), b"\xff" * 64, random.Random(1).randbytes(64)])
def test_a_garbled_file_is_refused(part, garbage, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    whole = bytearray(path.read_bytes())
    at = int(len(whole) * part)
    whole[at : at + 64] = garbage[: len(whole) - at]
    path.write_bytes(whole)
    assert refuses(checkpoints, path)


@pytest.mark.slow
@pytest.mark.parametrize("flip", [0x01, 0x08, 0x10, 0xFF])
def test_a_flipped_bit_is_found_or_does_not_matter(flip, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    whole = path.read_bytes()
    refused = 0
    places = range(flip % 11, len(whole), 11)
    for at in places:
        damaged = bytearray(whole)
        damaged[at] ^= flip
        path.write_bytes(damaged)
        refused += refuses(checkpoints, path)
    assert refused > 0.6 * len(places)  # the rest is dates, and what else an archive says twice


def test_a_shape_that_says_less_is_found(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(1, held=Holder(np.zeros(9999)), replay=make_replay(9999, 9999))
    whole = path.read_bytes()
    assert b"(9999,)" in whole
    path.write_bytes(whole.replace(b"(9999,)", b"(   1,)"))
    assert refuses(checkpoints, path)


def test_a_file_that_is_missing_or_another_is_refused(tmp_path):
    checkpoints, path = saved_one(tmp_path)
    path.unlink()
    assert checkpoints.latest == 1
    path.mkdir()
    assert refuses(checkpoints, path)
    path.rmdir()
    np.savez(path, x=np.zeros(3))
    assert refuses(checkpoints, path)
    with path.open("wb") as other:
        np.save(other, np.zeros(3))
    assert refuses(checkpoints, path)
    path.write_bytes(b"checkpoint")
    assert refuses(checkpoints, path)


def test_a_file_of_another_step_is_refused(tmp_path):
    checkpoints, path = saved_one(tmp_path)
    path.with_name("checkpoint-000000000001.npz").replace(path)
    assert refuses(checkpoints, path)


def test_a_pipe_or_a_device_is_no_file_of_a_checkpoint(tmp_path):
    checkpoints, path = saved_one(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert refuses(checkpoints, path)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert refuses(checkpoints, path)


@pytest.mark.parametrize("part", ["0.npy", "replay/0.npy"])
def test_a_file_that_says_it_is_huge_is_refused(part, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    assert part in parts
    huge = io.BytesIO()
    np.lib.format.write_array_header_2_0(
        huge, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
    )
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, content in parts.items():
                archive.writestr(name, huge.getvalue() if name == part else content)
        assert refuses(checkpoints, path)


@pytest.mark.parametrize("what", ["empty directory", "file"])
def test_a_name_alone_is_no_checkpoint(what, tmp_path):
    checkpoints, _ = saved_one(tmp_path)
    name = tmp_path / "checkpoint-000000000003.npz"
    name.touch() if what == "file" else name.mkdir()
    assert refuses(checkpoints, name)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"format": "pysampler checkpoint 2"}, "pysampler checkpoint 2"),
        ({"step": 1}, r"expected \('pysampler checkpoint 3', 2\)"),
        ({"trees": {"held": ["what"]}}, "a node"),
        ({"trees": {"held": ["what", 1, 2]}}, "KeyError"),
        ({"trees": {"held": ["array", "7"]}}, "KeyError"),
        ({"trees": {"held": ["list", ["array", "0"], ["array", "0"]]}}, "KeyError"),
        ({"trees": None}, "TypeError"),
        ({"replays": ["other"]}, "KeyError: 'about'"),
        ({"replays": ["replay", "replay"]}, "KeyError: 'about'"),
        ({"replays": [1]}, "AttributeError"),
        ({"replays": ["../replay"]}, "a part '../replay'"),
        ({"trees": {"a b": 1}}, "a part 'a b'"),
    ],
)
def test_another_format_is_refused(said, text, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    with np.load(path) as arrays:
        arrays = dict(arrays)
    about = {**json.loads(arrays["about"].tobytes()), **said}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(LayoutError, match=text):
        checkpoints.restore()


@pytest.mark.parametrize("part", ["0", "replay/0"])
def test_what_is_pickled_is_refused(part, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    with np.load(path) as arrays:
        arrays = dict(arrays)
    arrays[part] = np.array([{"a": 1}])
    np.savez(path, **arrays)
    with pytest.raises(LayoutError, match="allow_pickle=False"):
        checkpoints.restore()


# -- ends in the middle ----------------------------------------------------------------------------


def test_what_cannot_be_written_leaves_what_there_was(tmp_path, monkeypatch):
    checkpoints, _ = saved_one(tmp_path)
    before = names(tmp_path)
    monkeypatch.setattr(np.lib.format, "write_array", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        checkpoints.save(3, x=np.zeros(3))
    assert names(tmp_path) == before
    assert checkpoints.restore(held=Holder(None))["step"] == 2


def test_all_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    checkpoints, _ = saved_one(tmp_path)
    synced, fsync, replace = [], os.fsync, os.replace

    def log_fsync(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def log_replace(old, new):
        assert Path(new).name == "checkpoint-000000000003.npz"
        assert Path(old).stat().st_ino in synced
        assert tmp_path.stat().st_ino not in synced
        replace(old, new)

    def log_unlink(path):
        assert Path(path).name == "checkpoint-000000000001.npz"
        assert tmp_path.stat().st_ino in synced  # an old one goes when the new one is safe
        unlink(path)

    unlink = os.unlink
    monkeypatch.setattr(os, "fsync", log_fsync)
    monkeypatch.setattr(os, "replace", log_replace)
    monkeypatch.setattr(os, "unlink", log_unlink)
    checkpoints.save(3, x=np.zeros(3), replay=make_replay())
    assert checkpoints.steps() == [2, 3]


class Stopper:
    """Acts before the call of that number of those that change files, or might."""

    CALLS = frozenset(
        [
            *("mkdir", "open", "write", "flush", "fsync", "close", "rename", "replace"),
            *("unlink", "remove", "rmdir", "truncate"),
        ]
    )

    def __init__(self, point, act, but=()):
        self.left, self.act, self.calls = point, act, self.CALLS - {*but}

    def __call__(self, frame, event, called):
        if event == "c_call" and called.__name__ in self.calls:
            owner = type(getattr(called, "__self__", None)).__module__
            if "_io" in (called.__module__, owner) or called.__module__ == "posix":
                if self.left == 0:
                    self.act()
                self.left -= 1

    def __enter__(self):
        sys.setprofile(self)

    def __exit__(self, *_):
        sys.setprofile(None)


KILLED = """if True:
    import os, signal, sys, tempfile
    import numpy as np
    from pathlib import Path
    from pysampler import ReplayBuffer
    from pysampler._learning.checkpoints import Checkpoints

    replay = ReplayBuffer(4, {"x": np.zeros(2)})
    none = np.zeros(4)

    def save(checkpoints, step):
        replay.add({"x": np.full((4, 2), step)}, rewards=none, terminated=none, truncated=none,
                   env=none)
        checkpoints.save(step, x=np.full(100, step), y=[step, "text"], replay=replay)

    def check(checkpoints, step):
        saved = checkpoints.restore(step=step)
        assert saved["step"] == step and saved["y"] == [step, "text"], saved
        assert (saved["x"] == step).all()
        assert (saved["replay"].sample(9).fields["x"] == step).all()

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    point, status = 0, None
    while status != 0:
        with tempfile.TemporaryDirectory() as directory:
            checkpoints = Checkpoints(directory)
            for step in (1, 2):
                save(checkpoints, step)
            child = os.fork()
            if child == 0:
                with Stopper(point, die):
                    save(checkpoints, 3)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, status
            there = checkpoints.steps()
            assert there in ([1, 2], [1, 2, 3], [2, 3]), there
            for step in there:
                check(checkpoints, step)
            print(there[0], there[-1], len(os.listdir(directory)) - len(there))
            save(checkpoints, 4)
            check(checkpoints, 4)
            assert len(os.listdir(directory)) == len(checkpoints.steps()) == 2
        point += 1
"""


@pytest.mark.faults
@pytest.mark.slow
def test_whoever_is_killed_at_any_call_of_a_save_leaves_whole_checkpoints():
    # A process of its own, with no threads, forks one to be killed for each point.
    run = subprocess.run(
        [sys.executable, "-c", inspect.getsource(Stopper) + KILLED],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert (run.returncode, run.stderr) == (0, "")
    seen = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert len(seen) > 50
    assert seen == sorted(seen, key=lambda one: one[:2])  # from the old to the new, and not back
    assert {one[:2] for one in seen} == {(1, 2), (1, 3), (2, 3)}
    assert {left for *_, left in seen} == {0, 1}  # and some did leave something behind
    assert seen[-1] == (2, 3, 0)


@pytest.mark.slow
def test_ctrl_c_at_any_call_of_a_save_leaves_whole_checkpoints_and_nothing_else(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    replay = make_replay()
    seen = []
    interrupted = True
    while interrupted:
        directory = tmp_path / str(len(seen))
        checkpoints, _ = saved_one(directory)
        try:
            with Stopper(
                len(seen), interrupt, but={"close"}
            ):  # nor leaks what it would have closed
                checkpoints.save(3, held=Holder(3), replay=replay)
            interrupted = False
        except KeyboardInterrupt:
            pass
        there = checkpoints.steps()
        seen.append(there)
        assert len(names(directory)) == len(there)
        for step in there:
            checkpoints.restore(step=step)
    assert {tuple(there) for there in seen} == {(1, 2), (1, 2, 3), (2, 3)}
    assert len(seen) > 30


LOOP = """if True:
    import sys
    import numpy as np
    from pysampler._learning.checkpoints import Checkpoints

    checkpoints = Checkpoints(sys.argv[1])
    step = checkpoints.latest or 0
    while True:
        print(step, flush=True)
        step += 1
        checkpoints.save(step, x=np.full(10_000, step), y=[step])
"""


@pytest.mark.faults
@pytest.mark.slow
def test_whoever_is_killed_at_random_leaves_whole_checkpoints(tmp_path):
    print(f"PYSAMPLER_FAULT_SEED={SEED}")
    dice = random.Random(SEED)
    checkpoints = Checkpoints(tmp_path)
    for _ in range(ROUNDS):
        with subprocess.Popen(
            [sys.executable, "-c", LOOP, tmp_path], stdout=subprocess.PIPE, text=True
        ) as child:
            try:
                assert child.stdout.readline() == f"{checkpoints.latest or 0}\n"
                with pytest.raises(subprocess.TimeoutExpired):
                    child.wait(dice.uniform(0, 0.1))
            finally:
                child.kill()
            done = [int(line) for line in child.stdout if line.endswith("\n")]
        assert child.returncode == -signal.SIGKILL
        if done:
            assert checkpoints.latest >= done[-1]
        for step in checkpoints.steps():
            saved = checkpoints.restore(step=step)
            assert (saved["x"] == step).all()
            assert saved["y"] == [step]
    checkpoints.save((checkpoints.latest or 0) + 1)
    assert len(names(tmp_path)) == len(checkpoints.steps())
