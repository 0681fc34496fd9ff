"""Fields that follow from others, filled in where a config is composed and not where it is read.

A stage's key holds the fields that it declares. Were `corpus` to work out the number of ClimbMix shards from the
horizon, its key would hold scale, recipe and steps, and a step more would download and tokenize everything again. So
what follows is a value of the config itself, and the key holds only that value.
"""

from dataclasses import replace

from conf.schema import Config


def resolve(config: Config) -> Config:
    """`config` with `data.world.seed` set where the corpus is the sample world; idempotent."""
    if config.data.kind == "world" and config.data.world.seed is None:
        world = replace(config.data.world, seed=config.seed)
        config = replace(config, data=replace(config.data, world=world))
    return config
