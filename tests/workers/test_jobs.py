"""Jobs and notes: pickling, their replacement after a loss, and reports of their exceptions."""

import dataclasses
import importlib
import pickle
import pkgutil

import pytest

from pysampler._workers.exceptions import Raised
from pysampler._workers.jobs import (
    Answer,
    Close,
    Job,
    LayOut,
    Note,
    Repeated,
    Replace,
    ReportLoss,
    failure_of,
)
from pysampler._workers.remote import dumps
from pysampler.errors import WorkerLostError

MESSAGES = [Close(), LayOut(3), ReportLoss("worker 2 lost", "stepping"), Replace((1, 2))]


def kinds_of(base):
    """Yield all classes of the package that derive from ``base``."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith("pysampler."):
            yield kind
            yield from kinds_of(kind)


@pytest.mark.slow
def test_jobs_and_notes_are_importable_frozen_dataclasses():
    for package in ("_actors", "_learning", "_policies", "_rollouts", "_vector", "_workers"):
        path = importlib.import_module(f"pysampler.{package}").__path__
        for module in pkgutil.iter_modules(path, f"pysampler.{package}."):
            if module.name != "pysampler._workers.fork_server_process":  # a program
                importlib.import_module(module.name)
    kinds = {*kinds_of(Job), *kinds_of(Note)} - {Repeated}
    kinds = {kind for kind in kinds if not kind.__name__.startswith("_")}  # base classes
    assert len(kinds) > 15
    for kind in kinds:
        assert dataclasses.is_dataclass(kind), kind
        assert kind.__dataclass_params__.frozen, kind
        assert pickle.loads(pickle.dumps(kind)) is kind
    # The worker itself handles these.
    assert {kind for kind in kinds if getattr(kind, "run", None) is Job.run} == {Close, LayOut}
    assert all(kind.apply is not Note.apply for kind in kinds if issubclass(kind, Note))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_pickling_and_are_immutable(message):
    assert pickle.loads(dumps(message)) == message
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.doing = "something else"


# -- lost workers ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Once(Job):
    """A job as other packages define them."""

    doing = "trying"


@dataclasses.dataclass(frozen=True)
class Again(Repeated):
    """A job that can run twice."""


def test_the_job_of_a_loss_raises_its_error():
    job = ReportLoss("worker 2 lost: signal 9", "trying")
    with pytest.raises(WorkerLostError, match="^worker 2 lost: signal 9$"):
        pickle.loads(dumps(job)).run(None, 0, 0)


def test_replace_note_passes_seeds_to_the_server():
    class Server:
        def replace(self, seeds, over):
            self.seeds, self.over = seeds, over

    server = Server()
    Replace([5, 6], [True, False]).apply(server)
    assert server.seeds == [5, 6]
    assert server.over == [True, False]


# -- failures -------------------------------------------------------------------------------------


def raised_from(cause):
    raised = Raised(4, "stepping")
    raised.__cause__ = cause
    return raised


def test_failure_of_a_member_reports_the_cause():
    cause = KeyError("x")
    for message in (Once(), "closing"):
        failure = failure_of(raised_from(cause), message)
        assert (failure.env, failure.doing, failure.culprit) == (4, "stepping", "")
        assert failure.report.error is cause
        assert (failure.report.kind, failure.report.text) == ("KeyError", "'x'")


def test_failure_of_a_member_without_a_cause_reports_itself():
    failure = failure_of(raised_from(None), "closing")
    assert (failure.env, failure.report.error.args) == (4, (4, "stepping"))
    assert failure.report.kind == "Raised"


class Blaming(Note):
    """A note whose exceptions are blamed on a named culprit."""

    doing = "setting options"
    culprit = ("the policy", "acting")


@pytest.mark.parametrize(
    ("message", "doing", "culprit"),
    [
        ("sending results", "sending results", ""),
        (Once(), "trying", ""),
        (Replace([]), "replacing lost envs", ""),
        (Blaming(), "acting", "the policy"),
    ],
    ids=["text", "job", "note", "culprit"],
)
def test_other_failures_name_the_action_and_the_culprit(message, doing, culprit):
    error = ValueError("bad")
    failure = failure_of(error, message)
    assert (failure.env, failure.doing, failure.culprit) == (None, doing, culprit)
    assert failure.report.error is error
    assert failure.report.text == "bad"


def test_failure_is_sent_with_its_report_but_without_the_exception():
    failure = failure_of(ValueError("bad"), Blaming())
    answer = pickle.loads(dumps(Answer(3, failure)))
    assert answer.group == 3
    got = answer.result
    assert (got.env, got.doing, got.culprit) == (None, "acting", "the policy")
    assert got.report.error is None
    assert got.report.text == "bad"
