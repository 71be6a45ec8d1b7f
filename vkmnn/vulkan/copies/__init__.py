"""Copies of regions, fills and changes of layout."""
