"""Scores, their controls, and measurements on a GPU."""
