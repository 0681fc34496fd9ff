"""One training job over several hosts: who takes part, how they meet, how the others follow the first one. No JAX."""
