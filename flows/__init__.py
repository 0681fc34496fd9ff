"""What runs, in which order, where. Prefect lives here; mathematics and jax do not."""
