"""Decisions: who waits, in which order, and who is dropped. Pure."""
