"""Exceptions sent from workers: their types, texts, attributes, notes and tracebacks."""

import errno
import importlib.util
import linecache
import pickle
import sys
import threading
from bdb import BdbQuit
from dataclasses import dataclass

import numpy as np
import pytest

from pysampler._workers import exceptions
from pysampler._workers.exceptions import Raised, RemoteTraceback
from pysampler._workers.remote import dumps
from pysampler.errors import EnvError, WorkerLostError


def caught(error, cause=None):
    try:
        raise error from cause
    except BaseException as raised:
        return raised


def sent(error):
    """Return the error that the parent raises for an exception in a worker."""
    return exceptions.error_from(pickle.loads(dumps(exceptions.report(error))), "env 3 raised")


def raised_here(error):
    """Return the error that is raised for an exception of an env in this process."""
    return exceptions.error_from(exceptions.report(error), "env 3 raised")


class CodedError(ValueError):
    def __init__(self, message="", code=0):
        super().__init__(message)
        self.code = code


def test_error_has_both_types_and_chains_exception_and_traceback():
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


def test_message_is_not_quoted_twice_and_can_be_empty():
    assert str(sent(KeyError("key"))) == "env 3 raised: 'key'"
    assert str(sent(RuntimeError())) == "env 3 raised"


def test_exception_raised_in_this_process_is_the_cause_itself():
    original = caught(CodedError("here"), KeyError("why"))
    error = raised_here(original)
    assert error.__cause__ is original
    assert type(original.__cause__) is KeyError


class HoldingError(RuntimeError):
    """Cannot be pickled."""

    def __init__(self, message):
        super().__init__(message, threading.Lock())
        self.lock = threading.Lock()
        self.code = 7

    def __str__(self):
        return self.args[0]


class TwoArgumentsError(RuntimeError):
    """Can be pickled, but not unpickled."""

    def __init__(self, code, text):
        super().__init__(f"{text} ({code})")
        self.code = code


class KeywordError(RuntimeError):
    def __init__(self, *, code):
        super().__init__("by keyword")
        self.code = code


class RewordingError(RuntimeError):
    """Changes its text when unpickled."""

    def __init__(self, text, code=7):
        super().__init__(f"text: {text}")
        self.code = code


class PretendingError(RuntimeError):
    """Unpickles as a str."""

    code = 7

    def __reduce__(self):
        return str, ("no exception",)


class SlotsError(KeyError):
    __slots__ = ("code", "unset")
    table = np.arange(3)

    def __init__(self, one, code):
        super().__init__(one)
        self.code = code


class ParsingError(UnicodeDecodeError):
    code = 7

    def __init__(self, reason):
        super().__init__("utf8", b"a", 0, 1, reason)


class FileError(OSError):
    def __init__(self, path, *, code):
        super().__init__(errno.ENOENT, "no such model", path)
        self.code = code


class NewError(RuntimeError):
    def __new__(cls, code):
        error = super().__new__(cls, code)
        error.code = code
        return error

    def __init__(self, code):
        super().__init__(f"new {code}")


@dataclass(frozen=True)
class FrozenError(RuntimeError):
    code: int


class ReducingError(RuntimeError):
    """Defines its own __reduce__."""

    def __init__(self, code):
        super().__init__("reduced")
        self.code, self.lock = code, threading.Lock()

    def __reduce__(self):
        return ReducingError, (self.code,)


@pytest.mark.parametrize("received", [sent, raised_here])
@pytest.mark.parametrize(
    "original",
    [
        HoldingError("held"),
        TwoArgumentsError(7, "odd"),
        KeywordError(code=7),
        RewordingError("odd"),
        PretendingError("real"),
        SlotsError("k", 7),
        ParsingError("odd"),
        FileError("a.xml", code=7),
        NewError(7),
        FrozenError(7),
        ReducingError(7),
    ],
    ids=lambda e: type(e).__name__,
)
def test_env_error_has_the_raised_type_whatever_its_constructor_takes(original, received):
    error = received(caught(original))
    assert isinstance(error, EnvError)
    assert isinstance(error, type(original))
    assert str(error) == ": ".join(filter(None, ["env 3 raised", str(original)]))
    assert error.code == 7
    error.env = 3
    cause = error.__cause__
    assert type(cause) is type(original)
    assert (str(cause), cause.code) == (str(original), 7)
    assert received is raised_here or type(cause.__cause__) is RemoteTraceback
    for one in (error, cause):
        for name in ("errno", "filename", "reason", "end"):
            assert getattr(one, name, None) == getattr(original, name, None)


def test_note_names_the_attributes_that_could_not_be_sent():
    original = caught(HoldingError("held"))
    error = sent(original)
    assert error.__notes__ == [
        "HoldingError.args[1] (lock) and HoldingError.lock (lock) could not be sent to this process"
    ]
    assert error.__cause__.args == ("held", "<lock>")
    assert not hasattr(error.__cause__, "lock")
    here = raised_here(original)
    assert not hasattr(here, "__notes__")
    assert here.lock is original.lock


def test_base_classes_match_if_the_type_cannot_be_imported(tmp_path, monkeypatch):
    path = tmp_path / "only_in_the_worker.py"
    path.write_text(
        f"from {__name__} import TwoArgumentsError\n"
        "class LostError(TwoArgumentsError, LookupError):\n"
        "    pass\n"
    )
    spec = importlib.util.spec_from_file_location("only_in_the_worker", path)
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as worker:
        worker.setitem(sys.modules, "only_in_the_worker", module)
        spec.loader.exec_module(module)
        received = dumps(exceptions.report(caught(module.LostError(7, "gone"))))
    error = exceptions.error_from(pickle.loads(received), "env 3 raised")
    assert isinstance(error, TwoArgumentsError)
    assert isinstance(error, LookupError)
    assert error.code == 7
    assert str(error) == "env 3 raised: gone (7)"
    assert type(error.__cause__) is RemoteTraceback
    assert "LostError: gone" in str(error.__cause__)
    assert error.__notes__ == [
        "it is not an instance of LostError, which this process cannot import"
    ]


def test_exception_groups_can_be_split():
    error = sent(caught(ExceptionGroup("several", [KeyError("k"), CodedError("odd", 7)])))
    assert isinstance(error, ExceptionGroup)
    assert error.subgroup(CodedError).exceptions[0].code == 7


class SpeechlessError(RuntimeError):
    def __str__(self):
        raise OSError("no words")


class UntraceableError(RuntimeError):
    @property
    def __suppress_context__(self):
        raise OSError("no context")


def test_exceptions_whose_own_methods_raise_are_reported():
    assert exceptions.report(SpeechlessError()).text == "<its __str__ raised OSError>"
    assert exceptions.report(UntraceableError("lost")).traceback == (
        "UntraceableError: its traceback cannot be formatted\n"
    )


class FinalError(RuntimeError):
    def __init_subclass__(cls):
        raise TypeError("no subclasses")


@pytest.mark.parametrize("received", [sent, raised_here])
def test_base_classes_match_if_the_type_allows_no_subclass(received):
    error = received(FinalError("last"))
    assert isinstance(error, EnvError)
    assert isinstance(error, RuntimeError)
    assert error.__notes__ == ["it is not an instance of FinalError, which cannot be subclassed"]
    assert str(error) == "env 3 raised: last"
    assert type(error.__cause__) is FinalError


def test_system_exit_is_only_the_cause():
    error = sent(SystemExit(3))
    assert type(error) is EnvError
    assert error.__cause__.code == 3


def test_env_error_subclass_keeps_its_type():
    class SpecialError(EnvError):
        pass

    assert type(sent(SpecialError("x"))) is SpecialError
    assert not isinstance(sent(RuntimeError("x")), WorkerLostError)


def test_breakpoint_in_a_worker_suggests_num_workers_0():
    assert "pass num_workers=0" in str(sent(BdbQuit()))
    assert "num_workers" not in str(raised_here(BdbQuit()))


def test_traceback_begins_with_user_code():
    def user():
        raise KeyError("user's")

    try:  # as in a worker: pysampler's own frames above
        eval("call()", {"__name__": "pysampler._workers.worker", "call": user})
    except KeyError as error:
        error.__traceback__ = error.__traceback__.tb_next  # drop the frame of this test
        trace = exceptions.report(error).traceback
    assert "in user" in trace
    assert "<module>" not in trace
    only_ours = caught(KeyError("x"))
    assert "in caught" in exceptions.report(only_ours).traceback


def test_parent_adds_missing_source_lines_to_the_traceback(monkeypatch):
    code = compile("def cell():\n    return 1 / 0\n", "<cell 5>", "exec")
    names = {}
    exec(code, names)
    try:
        names["cell"]()
    except ZeroDivisionError as error:
        report = exceptions.report(error)
    assert "1 / 0" not in report.traceback
    lines = ["def cell():\n", "    return 1 / 0\n"]
    monkeypatch.setitem(linecache.cache, "<cell 5>", (0, None, lines, "<cell 5>"))
    text = str(exceptions.error_from(pickle.loads(dumps(report)), "raised").__cause__.__cause__)
    assert 'File "<cell 5>", line 2, in cell\n    return 1 / 0\nZeroDivisionError' in text
    assert text.count("names") == report.traceback.count("names")  # other lines are not repeated


def test_raised_records_the_member_and_its_action():
    raised = Raised(4, "stepping")
    assert (raised.env, raised.doing) == (4, "stepping")
    again = pickle.loads(dumps(raised))
    assert (again.env, again.doing) == (4, "stepping")
