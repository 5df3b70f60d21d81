"""What the course adds to other people's models."""
