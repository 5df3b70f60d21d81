"""A model's shape, on torch's meta device: no weight is read, none is allocated.

A config (a catalogue name, a directory, a dict) becomes the real transformers class; parameters by part, LoRA
targets and layer kinds are read off that module tree, never from a formula.
"""
