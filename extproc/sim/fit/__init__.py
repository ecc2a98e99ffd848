"""How the engine model compares with a real engine: its coefficients, fitted to a measured table."""
