"""Comparing vkmnn with other engines on a user's model: `vkmnn bench`.

Every engine runs in a separate process (`worker`), so that a crash of one, or of its driver, ends
only its row; they take turns, so that a machine that slows down affects all alike.
"""
