"""Hydra groups and the typed schema that every composed config must satisfy."""
