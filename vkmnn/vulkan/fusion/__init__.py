"""Ops and conversions fused into the dispatch of a neighbour."""
