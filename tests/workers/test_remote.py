"""Objects and exceptions on their way to another process."""

import importlib.util
import io
import linecache
import pickle
import sys
import threading
from bdb import BdbQuit

import cloudpickle
import numpy as np
import pytest

from pysampler._workers import remote
from pysampler._workers.remote import Raised, RemoteTraceback, dumps, dumps_by_value
from pysampler.errors import EnvError, WorkerLostError

SOURCE = "def double(x):\n    return 2 * x\n\nclass Thing:\n    double = staticmethod(double)\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that returns a module of a user's, in a place where imports find it or not."""

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
    """Notes which modules a pickle imports something from."""

    def __init__(self, sent):
        super().__init__(io.BytesIO(sent))
        self.modules = set()

    def find_class(self, module, name):
        self.modules.add(module)
        return super().find_class(module, name)


def by_value(thing, **kwargs):
    """Whether a function or class is sent itself, rather than the place where it is imported."""
    unpickler = Unpickler(dumps_by_value(thing, **kwargs))
    unpickler.load()
    return thing.__module__ not in unpickler.modules


def test_what_others_can_import_is_sent_by_reference(module):
    found = module("found_elsewhere", findable=True)
    for thing in (found.double, found.Thing, np.ndarray, len, remote.report, EnvError):
        assert not by_value(thing)


def test_what_no_clean_interpreter_can_import_is_sent_by_value(module):
    hidden = module("not_found_elsewhere", findable=False)
    for thing in (hidden.double, hidden.Thing):
        assert by_value(thing)
    sent = dumps_by_value([hidden.Thing(), {"function": hidden.double}])
    del sys.modules["not_found_elsewhere"]
    thing, functions = pickle.loads(sent)
    assert thing.double(4) == functions["function"](4) == 8


def test_a_module_whose_name_finds_another_file_is_sent_by_value(module, monkeypatch):
    other = module("two_of_a_name", findable=False, source="def double(x):\n    return 0\n")
    module("two_of_a_name", findable=True)
    monkeypatch.setitem(sys.modules, "two_of_a_name", other)
    assert pickle.loads(dumps_by_value(other.double))(4) == 0
    assert by_value(other.double)


def test_a_module_of_a_package_that_is_not_found_is_sent_by_value(module, tmp_path):
    package = module("hidden_package", findable=False)
    package.__path__ = [str(tmp_path / "elsewhere" / "hidden_package")]  # where finders look for it
    assert by_value(module("hidden_package.inner", findable=False).double)


def test_the_home_of_a_function_is_sent_as_it_is_now(module):
    found = module("home_of_policies", findable=True, source="n = 1\ndef f():\n    return n\n")
    found.n = 2
    assert by_value(found.f, home="home_of_policies")
    assert pickle.loads(dumps_by_value(found.f, home="home_of_policies"))() == 2
    assert not by_value(found.f)
    assert not by_value(found.f, home="no_such_module")


def test_modules_are_by_value_no_longer_than_it_takes(module):
    hidden = module("hidden_from_others", findable=False)
    with pytest.raises(TypeError, match="lock"):  # the fixture looks at what is registered
        dumps_by_value([hidden.double, threading.Lock()], home="json")


def test_several_modules_that_are_not_found_are_sent_by_value_one_of_them_home(module):
    home, other = (module(name, findable=False) for name in ("not_found_home", "not_found_other"))
    sent = dumps_by_value([home.double, other.double], home="not_found_home")
    assert [function(4) for function in pickle.loads(sent)] == [8, 8]


def test_a_module_that_the_user_has_registered_stays_so(module):
    own = module("registered_by_the_user", findable=False)
    cloudpickle.register_pickle_by_value(own)
    assert by_value(own.double)
    assert by_value(own.double, home="registered_by_the_user")
    cloudpickle.unregister_pickle_by_value(own)


def test_arrays_may_be_left_out_of_the_pickle():
    buffers = []
    array = np.arange(10_000)
    sent = dumps_by_value({"array": array}, lambda buffer: buffers.append(buffer))
    assert len(sent) < 1000
    [buffer] = buffers
    assert np.shares_memory(np.frombuffer(buffer, np.int64), array)


def test_what_pickle_cannot_send_cloudpickle_does():
    assert dumps([1, len]) == pickle.dumps([1, len], protocol=5)
    assert pickle.loads(dumps(lambda: 3))() == 3


# -- exceptions -----------------------------------------------------------------------------------


def caught(error, cause=None):
    try:
        raise error from cause
    except BaseException as raised:
        return raised


def sent(error):
    """The error that a parent raises for one of a worker."""
    received = pickle.loads(dumps(remote.report(error)))
    return remote.error_from(received, "env 3 raised")


class CodedError(ValueError):
    def __init__(self, message="", code=0):
        super().__init__(message)
        self.code = code


def test_an_error_is_of_both_types_and_has_the_exception_and_its_traceback_as_causes():
    error = sent(caught(CodedError("too cold", 7), KeyError("below zero")))
    assert isinstance(error, EnvError)
    assert isinstance(error, ValueError)
    assert str(error) == "env 3 raised: too cold"
    assert error.code == 7
    assert type(error.__cause__) is CodedError
    assert error.__cause__.args == ("too cold",)
    trace = error.__cause__.__cause__
    assert type(trace) is RemoteTraceback
    assert "in caught" in str(trace)
    assert "KeyError: 'below zero'" in str(trace)
    assert type(sent(CodedError())) is type(error)  # one type for each


def test_a_message_is_not_quoted_again_and_needs_no_text():
    assert str(sent(KeyError("key"))) == "env 3 raised: 'key'"
    assert str(sent(RuntimeError())) == "env 3 raised"


def test_what_was_raised_in_this_process_is_the_cause_itself():
    original = caught(CodedError("here"), KeyError("why"))
    error = remote.error_from(remote.report(original), "env 3 raised", original)
    assert error.__cause__ is original
    assert type(original.__cause__) is KeyError


class HoldingError(RuntimeError):
    """Cannot be pickled."""

    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()


class LopsidedError(RuntimeError):
    """Can be pickled, but not be unpickled."""

    def __init__(self, one, another):
        super().__init__(f"{one} and {another}")


class PretendingError(RuntimeError):
    """Is something else when it is unpickled."""

    def __reduce__(self):
        return str, ("no exception",)


@pytest.mark.parametrize(
    "original",
    [HoldingError("held"), LopsidedError(1, 2), PretendingError("real")],
    ids=lambda e: type(e).__name__,
)
def test_of_an_exception_that_cannot_be_sent_text_and_traceback_are(original):
    error = sent(caught(original))
    assert type(error) is EnvError
    assert str(error) == f"env 3 raised: {original}"
    assert type(error.__cause__) is RemoteTraceback
    assert f"{type(original).__name__}: {original}" in str(error.__cause__)


class SpeechlessError(RuntimeError):
    def __str__(self):
        raise OSError("no words")


class UntraceableError(RuntimeError):
    @property
    def __notes__(self):
        raise OSError("no notes")


def test_exceptions_whose_own_code_raises_are_reported():
    assert remote.report(SpeechlessError()).text == "<its __str__ raised OSError>"
    assert remote.report(UntraceableError("lost")).traceback == (
        "UntraceableError: no traceback of it can be made\n"
    )


class FinalError(RuntimeError):
    def __init_subclass__(cls):
        raise TypeError("no subclasses")


def test_a_type_that_allows_no_other_is_the_cause_only():
    error = sent(FinalError("last"))
    assert type(error) is EnvError
    assert str(error) == "env 3 raised: last"
    assert type(error.__cause__) is FinalError


def test_what_is_no_exception_but_ends_programs_is_the_cause_only():
    error = sent(SystemExit(3))
    assert type(error) is EnvError
    assert error.__cause__.code == 3


def test_an_env_error_stays_of_its_own_type():
    class SpecialError(EnvError):
        pass

    assert type(sent(SpecialError("x"))) is SpecialError
    assert not isinstance(sent(RuntimeError("x")), WorkerLostError)


def test_a_breakpoint_in_a_worker_says_what_it_needs():
    assert "pass num_workers=0" in str(sent(BdbQuit()))
    here = BdbQuit()
    assert "num_workers" not in str(remote.error_from(remote.report(here), "raised", here))


def test_a_traceback_begins_with_code_of_the_user():
    def user():
        raise KeyError("user's")

    try:  # as in a worker: pysampler's own frames above
        eval("call()", {"__name__": "pysampler._workers.worker", "call": user})
    except KeyError as error:
        error.__traceback__ = error.__traceback__.tb_next  # that of this test
        trace = remote.report(error).traceback
    assert "in user" in trace
    assert "<module>" not in trace
    only_ours = caught(KeyError("x"))
    assert "in caught" in remote.report(only_ours).traceback


def test_lines_that_only_the_parent_knows_are_added_to_the_traceback(monkeypatch):
    code = compile("def cell():\n    return 1 / 0\n", "<cell 5>", "exec")
    names = {}
    exec(code, names)
    try:
        names["cell"]()
    except ZeroDivisionError as error:
        report = remote.report(error)
    assert "1 / 0" not in report.traceback
    lines = ["def cell():\n", "    return 1 / 0\n"]
    monkeypatch.setitem(linecache.cache, "<cell 5>", (0, None, lines, "<cell 5>"))
    text = str(remote.error_from(report, "raised").__cause__.__cause__)
    assert 'File "<cell 5>", line 2, in cell\n    return 1 / 0\nZeroDivisionError' in text
    assert text.count("names") == report.traceback.count("names")  # other lines are there once


def test_a_raised_says_which_member_raised_its_cause_and_doing_what():
    raised = Raised(4, "stepping")
    assert (raised.member, raised.doing) == (4, "stepping")
    again = pickle.loads(dumps(raised))
    assert (again.member, again.doing) == (4, "stepping")


def test_a_module_is_looked_for_once_on_a_path(module, monkeypatch):
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
