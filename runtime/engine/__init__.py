"""Batching, prefix sharing and speculation over one backend; pure but for engine.py."""
