"""Before the run: can it work here. After it died: why."""
