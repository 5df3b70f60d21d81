"""What happens inside ranks: start, train, guard, prove, save."""
