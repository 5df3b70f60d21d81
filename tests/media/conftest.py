"""Clips shared by the media tests, written once per session with the fastest preset."""

import pytest

from course_lib.media.video import FrameReader


@pytest.fixture(scope="session", params=["decord", "pyav"])
def reader(request):
    with FrameReader(backend=request.param) as shared:
        yield shared
