"""Pickling of objects for another process: by reference, by value, and loading them."""

import abc
import collections.abc
import enum
import importlib.util
import io
import os
import pickle
import subprocess
import sys
import threading
import types

import cloudpickle
import numpy as np
import pytest

from pysampler._workers import remote
from pysampler._workers.remote import dumps, dumps_by_value
from pysampler.errors import EnvError

SOURCE = "def double(x):\n    return 2 * x\n\nclass Thing:\n    double = staticmethod(double)\n"

ABSTRACT = """
import abc, collections.abc
class Abstract(abc.ABC):
    @abc.abstractmethod
    def __len__(self): ...
class Real(Abstract, collections.abc.Sized):
    def __len__(self):
        return 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that makes a user module, importable (``findable``) or not."""

    def make(name, *, findable, source=SOURCE):
        home = tmp_path / ("findable" if findable else "elsewhere")
        path = home.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        if findable:
            monkeypatch.syspath_prepend(home)
        spec = importlib.util.spec_from_file_location(name, path)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made)
        spec.loader.exec_module(made)
        return made

    before = cloudpickle.list_registry_pickle_by_value()
    yield make
    assert cloudpickle.list_registry_pickle_by_value() == before


class Unpickler(pickle.Unpickler):
    """Records the modules from which a pickle imports."""

    def __init__(self, sent):
        super().__init__(io.BytesIO(sent))
        self.modules = set()

    def find_class(self, module, name):
        self.modules.add(module)
        return super().find_class(module, name)


def by_value(thing, **kwargs):
    """Return whether a function or class is pickled by value, not as an import."""
    unpickler = Unpickler(dumps_by_value(thing, **kwargs))
    unpickler.load()
    return thing.__module__ not in unpickler.modules


def test_importable_objects_are_pickled_by_reference(module):
    found = module("found_elsewhere", findable=True)
    for thing in (found.double, found.Thing, np.ndarray, len, remote.dumps, EnvError):
        assert not by_value(thing)
    for frozen in (abc.ABCMeta, abc.ABC, os.makedirs, os.path.exists, collections.abc.Sequence):
        assert not by_value(frozen)


def test_script_classes_may_have_abstract_bases(module):
    hidden = module("with_abstract_bases", findable=False, source=ABSTRACT)
    real, abstract = remote.copy_from(dumps_by_value([hidden.Real, hidden.Abstract]))
    assert issubclass(real, abstract)
    assert type(real) is abc.ABCMeta
    assert isinstance(real(), collections.abc.Sized)


def test_unimportable_objects_are_pickled_by_value(module):
    hidden = module("not_found_elsewhere", findable=False)
    for thing in (hidden.double, hidden.Thing):
        assert by_value(thing)
    sent = dumps_by_value([hidden.Thing(), {"function": hidden.double}])
    del sys.modules["not_found_elsewhere"]
    thing, functions = pickle.loads(sent)
    assert thing.double(4) == functions["function"](4) == 8


def test_module_shadowed_by_another_file_is_pickled_by_value(module, monkeypatch):
    other = module("two_of_a_name", findable=False, source="def double(x):\n    return 0\n")
    module("two_of_a_name", findable=True)
    monkeypatch.setitem(sys.modules, "two_of_a_name", other)
    assert pickle.loads(dumps_by_value(other.double))(4) == 0
    assert by_value(other.double)


def test_module_of_an_unimportable_package_is_pickled_by_value(module, tmp_path):
    package = module("hidden_package", findable=False)
    package.__path__ = [str(tmp_path / "elsewhere" / "hidden_package")]  # where finders search
    assert by_value(module("hidden_package.inner", findable=False).double)


@pytest.mark.parametrize("name", ["filled_by_exec", "encodings.filled_by_exec"])
def test_module_that_exec_filled_is_pickled_by_value(name, monkeypatch):
    made = types.ModuleType(name)
    exec(SOURCE, made.__dict__)
    monkeypatch.setitem(sys.modules, name, made)
    assert by_value(made.double)
    assert by_value(made.Thing)


def test_parts_of_extension_modules_are_pickled_by_reference(module, monkeypatch):
    """Importing the extension module adds them to ``sys.modules``."""
    parts = ["_core_in_tests", "_core_in_tests.part", "_core_in_tests.part.inner"]
    module(parts[0], findable=True)
    for name in parts[1:]:
        made = types.ModuleType(name)
        exec(SOURCE, made.__dict__)
        monkeypatch.setitem(sys.modules, name, made)
        assert not by_value(made.Thing)


def test_home_module_is_pickled_with_its_current_state(module):
    found = module("home_of_policies", findable=True, source="n = 1\ndef f():\n    return n\n")
    found.n = 2
    assert by_value(found.f, home="home_of_policies")
    assert pickle.loads(dumps_by_value(found.f, home="home_of_policies"))() == 2
    assert not by_value(found.f)
    assert not by_value(found.f, home="no_such_module")


def test_failed_pickling_leaves_no_module_registered_by_value(module):
    hidden = module("hidden_from_others", findable=False)
    with pytest.raises(TypeError, match="lock"):  # the fixture checks the registrations
        dumps_by_value([hidden.double, threading.Lock()], home="json")


def test_home_and_other_unimportable_modules_are_pickled_by_value(module):
    home, other = (module(name, findable=False) for name in ("not_found_home", "not_found_other"))
    sent = dumps_by_value([home.double, other.double], home="not_found_home")
    assert [function(4) for function in pickle.loads(sent)] == [8, 8]


def test_user_registered_module_stays_registered(module):
    own = module("registered_by_the_user", findable=False)
    cloudpickle.register_pickle_by_value(own)
    assert by_value(own.double)
    assert by_value(own.double, home="registered_by_the_user")
    cloudpickle.unregister_pickle_by_value(own)


def test_arrays_can_be_left_out_of_the_pickle():
    buffers = []
    array = np.arange(10_000)
    sent = dumps_by_value({"array": array}, lambda buffer: buffers.append(buffer))
    assert len(sent) < 1000
    [buffer] = buffers
    assert np.shares_memory(np.frombuffer(buffer, np.int64), array)


def test_dumps_falls_back_to_cloudpickle():
    assert dumps([1, len]) == pickle.dumps([1, len], protocol=5)
    assert pickle.loads(dumps(lambda: 3))() == 3


def test_module_lookup_is_cached_per_path(module, monkeypatch):
    class Finder:
        def __init__(self):
            self.asked = []

        def find_spec(self, name, path=None, target=None):
            self.asked.append(name)

    finder = Finder()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    thing = module("looked_for", findable=True).Thing
    assert not by_value(thing)
    assert "looked_for" in finder.asked
    finder.asked.clear()
    assert not by_value(thing)
    assert "looked_for" not in finder.asked
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "findable" not in path])
    assert by_value(thing)
    other = module("looked_for", findable=False).Thing
    assert by_value(other)


@pytest.fixture
def stats():
    """Return a class that is pickled by value, and a pickle made before the class changed."""

    class Stats:
        scale = 1.0

        def scaled(self):
            return self.scale, Kind.ONE

    class Kind(enum.Enum):
        ONE = 1

    pickled = dumps_by_value(Stats())
    Stats.scale = 2.0
    return Stats, pickled


def test_loading_an_answer_does_not_change_existing_classes(stats):
    kind, pickled = stats
    method = kind.scaled
    again = remote.loads(pickled)
    assert type(again) is kind
    assert kind.scaled is method
    assert again.scaled()[0] == kind.scale == 2.0


@pytest.mark.slow
def test_loading_an_answer_creates_missing_classes(stats):
    _, pickled = stats
    program = "import sys; from pysampler._workers.remote import loads\n"
    program += "print(loads(sys.stdin.buffer.read()).scaled())"
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickled, capture_output=True, check=True
    )
    assert done.stdout == b"(1.0, <Kind.ONE: 1>)\n"


def test_copy_has_its_own_classes(stats):
    kind, _ = stats
    method = kind.scaled
    copied = remote.copy_from(dumps_by_value(kind()))
    assert type(copied) is not kind
    kind.scale = 3.0
    assert copied.scaled()[0] == 2.0
    assert kind.scaled is method


def test_large_answers_are_loaded_from_a_memoryview():
    sent = {"picture": np.arange(1_000_000), "text": "x" * 100_000, "kind": np.float32}
    again = remote.loads(memoryview(dumps(sent)))
    assert (again["picture"] == sent["picture"]).all()
    assert (again["text"], again["kind"]) == (sent["text"], np.float32)
    assert remote.loads(memoryview(pickle.dumps(["a", 1], protocol=0))) == ["a", 1]
