"""Predict, run, compare; checked exercises; progress; the learners' notebooks.

What a notebook's first cell imports stands here; plots and the lab are imported where they are used.
"""

from course_lib.learn.checks import check, hint, reveal
from course_lib.learn.cpu_op import prepare_cpu_ranks
from course_lib.learn.first_cell import environment
from course_lib.learn.predictions import compare, predict

__all__ = ["check", "compare", "environment", "hint", "predict", "prepare_cpu_ranks", "reveal"]
