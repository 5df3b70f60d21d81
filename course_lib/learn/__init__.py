"""Predict, run, compare; checked exercises; progress; the learners' notebooks."""
