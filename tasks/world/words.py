"""The words the sample world is made of: syllables of invented names and pools of everyday nouns.

Every name is invented, so that nothing about the world can be known from elsewhere. Nouns start with a consonant, so
that "a" is always the right article, and no noun stands in two pools of one kind of subject.
"""

import random

_ONSETS = ("Ba", "Do", "Fi", "Ga", "Hu", "Je", "Ka", "Lu", "Mi", "No", "Pe", "Ro", "Su", "Ta", "Vo", "Ze")
_PEOPLE_ENDINGS = ("drik", "lomi", "nesh", "rvan", "skel", "tobu")
_PLACE_ENDINGS = ("mouth", "wick", "holm", "fell", "stead", "gate", "dale", "haven")
_ISLAND_ENDINGS = ("rrenmar", "lvandor", "ssimere")

TRADES = ("baker", "miller", "weaver", "potter", "fisher", "tailor", "painter", "carpenter")
PETS = ("goat", "dog", "cat", "parrot", "rabbit", "donkey", "pony", "hen")
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "purple", "brown")
FOODS = ("bread", "cheese", "honey", "soup", "rice", "fish", "cake", "butter")
INSTRUMENTS = ("harp", "flute", "drum", "fiddle", "horn", "lute", "whistle", "bagpipe")
REGIONS = ("north", "south", "east", "west")
PRODUCTS = ("salt", "wool", "glass", "timber", "pepper", "silk", "coal", "marble", "tea", "wax", "tin", "paper")
LANDMARKS = ("tower", "bridge", "fountain", "lighthouse", "temple", "windmill", "statue", "waterfall")
THINGS = (
    "lantern", "kettle", "basket", "ladder", "blanket", "hammer", "mirror", "bottle", "saddle", "candle", "wagon",
    "barrel", "pillow", "shovel", "teapot", "needle", "compass", "helmet", "carpet", "pitcher", "bucket", "sledge",
    "trumpet", "cradle",
)  # fmt: skip
MATERIALS = ("wood", "iron", "clay", "silver", "stone", "copper", "leather", "bone")
ROOMS = ("kitchen", "cellar", "barn", "hall", "garden", "stable", "workshop", "pantry")

MAX_PEOPLE = len(_ONSETS) * len(_PEOPLE_ENDINGS)
MAX_PLACES = min(len(_ONSETS), len(PRODUCTS))
MAX_THINGS = len(THINGS)


def people_names(count: int, rng: random.Random) -> list[str]:
    """`count` names of one onset and one ending; none is part of another, since all endings differ at full length."""
    return rng.sample([onset + ending for onset in _ONSETS for ending in _PEOPLE_ENDINGS], count)


def place_names(count: int, rng: random.Random) -> list[str]:
    """`count` names, no two with the same onset."""
    return [onset + rng.choice(_PLACE_ENDINGS) for onset in rng.sample(_ONSETS, count)]


def island_name(rng: random.Random) -> str:
    """The name of the island itself."""
    return rng.choice(_ONSETS) + rng.choice(_ISLAND_ENDINGS)


def spelled(word: str) -> str:
    """`goat` → `g-o-a-t`."""
    return "-".join(word)
