"""DeepSpeed must not look for an accelerator in these tests."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
