"""Turns that go through faults, and what must hold of each of them."""
