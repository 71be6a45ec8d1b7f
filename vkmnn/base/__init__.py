"""Foundations without a word of networks: files, threads, registries, budgets."""
