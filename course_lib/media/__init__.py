"""Real files: video frames with their real timestamps, audio as 16 kHz mono, bad files named."""
