"""Decisions: from what is known of a pool to its limits and rejection rates. Pure."""
