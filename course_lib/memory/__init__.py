"""Predicted memory per GPU and host, by part and phase, and its inverse: what fits."""
