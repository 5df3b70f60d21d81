"""One file per task: how data, processor, model, loss and metrics are put together."""
