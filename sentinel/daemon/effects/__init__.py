"""Performs the engine's effects: steps of plans, orders and questions to nodes, diagnostics, checkpoint choice."""
