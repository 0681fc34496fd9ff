"""The words the sample world is made of: syllables of invented names and pools of everyday nouns.

Every name is invented, so that nothing about the world can be known from elsewhere. First letters are spread evenly
over people, places and things, since letters are asked for. Nouns that stand behind "a" start with a consonant.
"""

import random

_ONSETS = (
    "Ba", "Ce", "Do", "Fi", "Ga", "Hu", "Je", "Ka", "Lu", "Mi", "No", "Pe", "Qua", "Ro", "Su", "Ta", "Vo", "Wi", "Yo",
    "Ze",
)  # fmt: skip
_PEOPLE_ENDINGS = ("drik", "lomi", "nesh", "rvan", "skel", "tobu")
_PLACE_ENDINGS = ("mouth", "wick", "holm", "fell", "stead", "gate", "dale", "haven")
_ISLAND_ENDINGS = ("rrenmar", "lvandor", "ssimere")

TRADES = ("baker", "miller", "weaver", "potter", "fisher", "tailor", "carpenter", "gardener")
PETS = ("goat", "dog", "cat", "parrot", "rabbit", "turtle", "mouse", "hen")
COLOURS = ("red", "blue", "green", "yellow", "white", "purple", "teal", "cream")
FOODS = ("bread", "cheese", "honey", "soup", "rice", "fish", "jam", "meat")
INSTRUMENTS = ("harp", "flute", "drum", "violin", "lute", "whistle", "bagpipe", "piano")
REGIONS = ("north", "south", "east", "west")
PRODUCTS = ("salt", "wool", "glass", "timber", "pepper", "coal", "marble", "fur", "rope", "linen", "barley", "dates")
LANDMARKS = ("tower", "bridge", "fountain", "lighthouse", "palace", "windmill", "statue", "castle")
THINGS = (
    "basket", "candle", "dagger", "feather", "goblet", "hammer", "jug", "kettle", "lantern", "mirror", "needle",
    "pillow", "ribbon", "saddle", "teapot", "vase",
    "bottle", "compass", "drawer", "fork", "glove", "helmet", "jar", "kite", "ladder", "mug", "net", "pitcher", "rug",
    "shovel", "towel", "veil",
)  # fmt: skip
MATERIALS = ("wood", "iron", "clay", "silver", "bone", "leather", "granite", "tin")
ROOMS = ("kitchen", "cellar", "barn", "hall", "garden", "stable", "workshop", "pantry")

MAX_PEOPLE = len(_ONSETS) * len(_PEOPLE_ENDINGS)
MAX_PLACES = len(PRODUCTS)
MAX_THINGS = len(THINGS)


def people_names(count: int, rng: random.Random) -> list[str]:
    """`count` names, each first letter as often as any other (give or take one)."""
    endings = {onset: rng.sample(_PEOPLE_ENDINGS, len(_PEOPLE_ENDINGS)) for onset in _ONSETS}
    rounds = [rng.sample(_ONSETS, len(_ONSETS)) for _ in _PEOPLE_ENDINGS]
    return [onset + endings[onset].pop() for onsets in rounds for onset in onsets][:count]


def place_names(count: int, rng: random.Random) -> list[str]:
    """`count` names, no two with the same onset."""
    return [onset + rng.choice(_PLACE_ENDINGS) for onset in rng.sample(_ONSETS, count)]


def island_name(rng: random.Random) -> str:
    """The name of the island itself."""
    return rng.choice(_ONSETS) + rng.choice(_ISLAND_ENDINGS)


def spelled(word: str) -> str:
    """`goat` → `g-o-a-t`."""
    return "-".join(word)
