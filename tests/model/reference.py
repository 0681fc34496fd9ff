"""The recipes' mathematics once more, straight from their description: no chunks, no modules, no speed.

Run in float64 (`jax.enable_x64`), so that what differs from it is the rounding of the code under test.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model.recipe import AdamGroup, GPTConfig


def norm(x: Any) -> Any:
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + np.finfo(np.float32).eps)


def token_losses(params: Any, tokens: Any, targets: Any, config: GPTConfig) -> Any:
    """Losses [batch, seq] of tokens and targets [batch, seq]."""
    arch, d = config.recipe.architecture, config.head_dim
    seq = tokens.shape[1]
    x = norm(params["wte"][tokens])
    if arch.smear:
        gate = jax.nn.sigmoid(x[:, 1:, : arch.smear_channels] @ params["smear_gate"].T)
        x = jnp.concatenate([x[:, :1], x[:, 1:] + params["smear_lambda"] * gate * x[:, :-1]], 1)
    angle = np.arange(seq)[:, None] * arch.rope_base ** (-2 * np.arange(d // 2) / d)
    distance = np.arange(seq)[:, None] - np.arange(seq)
    x0, kept = x, None
    for i in range(config.n_layer):
        layer = params["layers"][str(i)]
        x = params["resid_lambdas"][i] * x + params["x0_lambdas"][i] * x0
        h = norm(x)
        q, k, v = (h @ layer["attn"][name].T for name in ("c_q", "c_k", "c_v"))
        if str(i) in params["value_embeds"]:
            gate = arch.value_gate_range * jax.nn.sigmoid(
                h[..., : arch.value_gate_channels] @ layer["attn"]["ve_gate"].T
            )
            v += jnp.repeat(gate, d, axis=-1) * params["value_embeds"][str(i)][tokens]
        heads = []
        for head in range(config.n_head):
            shared = head // (config.n_head // config.n_kv_head)
            own, kv = slice(head * d, (head + 1) * d), slice(shared * d, (shared + 1) * d)
            turned = []
            for y in (q[..., own], k[..., kv]):
                y1, y2 = y[..., : d // 2], y[..., d // 2 :]
                y = jnp.concatenate(
                    [y1 * np.cos(angle) + y2 * np.sin(angle), -y1 * np.sin(angle) + y2 * np.cos(angle)], -1
                )
                turned.append(norm(y) * arch.qk_scale)
            scores = turned[0] @ jnp.swapaxes(turned[1], 1, 2) / np.sqrt(d)
            visible = (distance >= 0) & (distance <= config.windows[i])
            heads.append(jax.nn.softmax(jnp.where(visible, scores, -jnp.inf)) @ v[..., kv])
        x += jnp.concatenate(heads, -1) @ layer["attn"]["c_proj"].T
        x += jnp.maximum(norm(x) @ layer["mlp"]["c_fc"].T, 0) ** 2 @ layer["mlp"]["c_proj"].T
        kept = x if i == config.n_layer // 2 else kept
    if arch.backout:
        x -= params["backout_lambda"] * kept
    logits = arch.softcap * jnp.tanh(norm(x) @ params["lm_head"].T / arch.softcap)[..., : config.vocab_size]
    at_target = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(targets, 0)[..., None], -1)[..., 0]
    return jnp.where(targets >= 0, -at_target, 0)


def adamw(p: Any, grads: list[Any], rates: list[float], group: AdamGroup) -> Any:
    """The tensor after one AdamW step for each gradient."""
    mean = square = np.zeros_like(p)
    for t, (g, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        mean = group.beta1 * mean + (1 - group.beta1) * g
        square = group.beta2 * square + (1 - group.beta2) * g**2
        p = p * (1 - rate * group.weight_decay)
        p = p - rate * (mean / (1 - group.beta1**t)) / (np.sqrt(square / (1 - group.beta2**t)) + 1e-10)
    return p


def spectrum(x: Any) -> Any:
    """Singular values."""
    return np.linalg.svd(np.asarray(x, np.float64), compute_uv=False)
