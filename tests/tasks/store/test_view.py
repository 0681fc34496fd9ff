"""A stage sees what it declared, and reading anything else is an error at once."""

import operator

import pytest

from tasks.stage import Stage
from tasks.store.view import ConfigView, UndeclaredField

STAGE = Stage("toy", 1, reads=("scale", "data.text_key"), runtime=("store.root",))


def test_declared_fields_and_sections_come_through(config):
    view = ConfigView(config(), STAGE)
    assert view.scale is config().scale
    assert view.scale.seq_len == config().scale.seq_len
    assert view.data.text_key == "text"
    assert view.store.root == config().store.root


@pytest.mark.parametrize("path", ["seed", "data.paths", "store.cache_dir", "recipe"])
def test_undeclared_fields_raise_with_the_line_to_write(config, path):
    view = ConfigView(config(), STAGE)
    with pytest.raises(UndeclaredField, match=f"add '{path}' to reads"):
        operator.attrgetter(path)(view)


def test_a_config_is_read_only(config):
    with pytest.raises(TypeError):
        ConfigView(config(), STAGE).seed = 3


def test_an_unknown_field_is_an_ordinary_attribute_error(config):
    with pytest.raises(AttributeError):
        _ = ConfigView(config(), STAGE).data.nothing
