"""Edges: the ledger port, in this process or over Redis. Redis stays in here."""
