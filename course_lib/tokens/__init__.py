"""What a clip costs: frames, grid, tokens and timestamps, and which settings move them."""
