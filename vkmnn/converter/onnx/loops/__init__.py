"""Loops: unrolled, or recognised as recurrent operators."""
