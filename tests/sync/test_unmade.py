"""Uninitialized objects, and objects that cannot be pickled, raise TypeError and never crash."""

import copy
import inspect
import pickle
import sysconfig

import pytest
from programs import completed

from pysampler import _core, sync

CLASSES = sorted(name for name, one in vars(_core).items() if inspect.isclass(one))

CALL_ALL = """
import sys
from pysampler import _core

cls = getattr(_core, sys.argv[1])
others = {"__init__", "__reduce__", "__module__", "__doc__", "__dict__", "_pybind11_conduit_v1_"}
for name, member in vars(cls).items():
    if name in others or isinstance(member, (staticmethod, int)):
        continue
    print(name, file=sys.stderr)
    call = member.__get__ if hasattr(member, "fget") else member
    answers = set()
    for count in range(9):
        for value in (None, 0, [], b""):
            try:
                call(cls.__new__(cls), *[value] * count)
                answers.add("no error")
            except TypeError as error:
                answers.add(str(error).partition(": ")[2])
    assert "its __init__ has not been called" in answers, (name, answers)
    assert "no error" not in answers, (name, answers)
"""


@pytest.mark.parametrize("name", CLASSES)
def test_methods_of_uninitialized_objects_raise_type_error(name):
    completed("-c", CALL_ALL, name)


def test_uninitialized_objects_are_rejected_as_arguments():
    unmade = _core.Segment.__new__(_core.Segment)
    for call in (_core.Flag, _core.Segment):
        with pytest.raises(TypeError, match="has not been called"):
            call(unmade)
    with pytest.raises(TypeError, match="has not been called"):
        sync.Flag(policy=_core.WaitPolicy.__new__(_core.WaitPolicy))


@pytest.mark.parametrize("name", CLASSES)
def test_native_classes_cannot_be_pickled(name):
    cls = getattr(_core, name)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=f"cannot pickle or copy {name}"):
            pickle.dumps(cls.__new__(cls), protocol)
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=f"cannot pickle or copy {name}"):
            copied(cls.__new__(cls))


@pytest.mark.parametrize("make", [sync.WaitPolicy, sync.Watch, sync.wait_costs])
def test_process_local_objects_cannot_be_pickled(make):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="cannot pickle or copy"):
            pickle.dumps(make(), protocol)


@pytest.mark.slow
@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="NumPy cannot be imported there"
)
def test_import_in_a_subinterpreter_raises():
    program = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
interpreters.run_string(interpreters.create(), '''
try:
    import pysampler
except ImportError as error:
    print(error)
''')
"""
    assert "subinterpreter" in completed("-W", "ignore", "-c", program).stdout
