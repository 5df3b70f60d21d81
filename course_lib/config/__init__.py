"""Run configs and DeepSpeed configs: read, resolved, and checked against what the libraries really do."""
