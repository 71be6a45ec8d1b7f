"""Comparing vkmnn with other engines on a user's model: `vkmnn bench`.

Every engine runs in a process of its own (`worker`), so that a crash of one, or of its driver,
ends only its row; they take turns, so that a machine that slows down hits all alike.
"""
