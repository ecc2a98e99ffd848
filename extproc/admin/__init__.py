"""Edges: metrics, state and health over HTTP."""
