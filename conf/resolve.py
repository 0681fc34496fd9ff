"""Fields that follow from others, filled in where a config is composed and not where it is read.

A stage's key holds the fields that it declares. Were `corpus` to work out the number of ClimbMix shards from
the horizon, its key would hold scale, recipe and steps, and a wider model would download and tokenize
everything again. So what follows is a value of the config itself, and the key holds only that value.
"""

from dataclasses import replace

from conf import climbmix, prompt_sets
from conf.schema import Config, Data
from conf.sizing import sized


def resolve(config: Config) -> Config:
    """`config` with `data.world.seed` set where the corpus is the sample world, `data.max_shards` where it is
    ClimbMix, and `prompts.digest`; a value that the user gave stays. Idempotent."""
    if config.prompts.digest is None:
        digest = prompt_sets.digest(config.prompts.sets)
        config = replace(config, prompts=replace(config.prompts, digest=digest))
    data = config.data
    if data.kind == "world" and data.world.seed is None:
        return _with(config, replace(data, world=replace(data.world, seed=config.seed)))
    if data.kind == "climbmix" and data.max_shards is None:
        return _with(config, replace(data, max_shards=climbmix.shards_for(horizon_tokens(config))))
    return config


def horizon_tokens(config: Config) -> int:
    """Tokens that pretraining reads: its steps times the tokens of a step."""
    sizing = sized(config)
    return sizing.iterations * sizing.total_batch_tokens


def _with(config: Config, data: Data) -> Config:
    return replace(config, data=data)
