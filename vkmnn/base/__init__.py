"""Foundations independent of networks: files, threads, registries, budgets."""
