"""Edges: reading the engines. One module per engine kind turns text into samples; HTTP stays in here."""
