"""A stage that compiles two programs with JAX, to try the compilation cache with."""

from tasks.stage import Stage

STAGE = Stage(name="compiling", version=1, reads=("seed",), accelerator=True)


def run(config, inputs, out):
    """Writes a number that two compiled programs gave."""
    import jax
    import jax.numpy as jnp

    total = jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x).T)(jnp.ones((64, 64))).sum()
    (out.path / "total").write_text(f"{float(total):.3f}")
    return {}
