"""Windows, events, labels, sampler coverage and the batch audit."""
