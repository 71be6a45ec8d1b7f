"""The engines of `vkmnn bench`, one per module; each imports its engine when it loads."""
