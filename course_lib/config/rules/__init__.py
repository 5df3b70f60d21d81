"""The lint rules, one module per thing that can be wrong. Each takes Facts and returns findings."""
