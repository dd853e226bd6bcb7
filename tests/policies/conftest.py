"""Fixtures for tests of policies."""

import pytest
from scripted import Scripted

import pysampler


@pytest.fixture(params=[0, 2], ids=["in process", "in workers"])
def envs(request):
    with pysampler.VectorEnv([lambda: Scripted("..t.")] * 4, num_workers=request.param) as envs:
        yield envs
