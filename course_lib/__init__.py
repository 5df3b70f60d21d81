"""Fine-tuning video and video+speech models with LoRA: accounting, budgets, proofs, lessons.

Importing this package imports neither torch nor transformers; the subpackages do so where they need it.
"""

__version__ = "0.1.0"
