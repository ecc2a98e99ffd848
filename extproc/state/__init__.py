"""Edges: the ledger and quota ports, in this process or over Redis. Redis stays in here."""
