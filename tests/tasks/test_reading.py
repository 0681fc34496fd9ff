import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.reading import TEXT_DOCUMENT_CHARS, read_documents
from tasks.stage import InputError


def read(path, text_key="text"):
    return list(read_documents(path, str(path), text_key))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=8))
@settings(max_examples=40, deadline=None)
def test_texts_come_back_from_every_format(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("formats")
    rows = "".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts))
    (folder / "a.jsonl").write_text(rows)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    pq.write_table(pa.table({"id": range(len(texts)), "text": pa.array(texts, pa.string())}), folder / "a.parquet")
    for name in ("a.jsonl", "a.jsonl.gz", "a.parquet"):
        assert read(folder / name) == texts


def test_a_short_text_file_is_one_document_and_a_long_one_is_cut_at_blank_lines(tmp_path):
    short, long = tmp_path / "short.txt", tmp_path / "long.txt.gz"
    short.write_text("one\n\ntwo\n")
    paragraphs = [f"{number} " + "x" * 3000 for number in range(10)]
    long.write_bytes(gzip.compress("\n\n".join(paragraphs).encode()))
    assert read(short) == ["one\n\ntwo"]
    pieces = read(long)
    assert "\n\n".join(pieces) == "\n\n".join(paragraphs)
    assert [piece.split()[0] for piece in pieces] == ["0", "4", "8"]


def test_a_text_without_blank_lines_is_cut_at_a_line_end(tmp_path):
    (tmp_path / "log.txt").write_text("a line of a log\n" * 5000)
    pieces = read(tmp_path / "log.txt")
    assert "\n".join(pieces) + "\n" == "a line of a log\n" * 5000
    assert max(map(len, pieces)) < 2 * TEXT_DOCUMENT_CHARS + 20


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello\n")
    assert read(tmp_path / "a.txt") == ["hello"]


FAULTS = [
    ("a.txt", b"fine\n\xef\xbb\xbfd\xff\n", r"a\.txt: byte 9 \(0xff\) is not UTF-8"),
    ("a.txt", b"\xef\xbb\xbfd\xff\n", r"a\.txt: byte 4 \(0xff\) is not UTF-8"),
    ("a.txt", "\ufeffwide".encode("utf-16-le"), r"a\.txt: byte 0 \(0xff\) is not UTF-8"),
    ("a.jsonl.gz", gzip.compress(b'{"text": "\xe9"}\n'), r"byte 10 of its unzipped content \(0xe9\) is not UTF-8"),
    ("a.jsonl", b'{"text": "a"}\n\n{"text": "b"\n', r"a\.jsonl:3: not JSON at column 13"),
    ("a.jsonl", b'{"text": "a"}\n{"body": "b", "id": 1}\n', r"a\.jsonl:2: no field 'text' \(it has 'body', 'id'\)"),
    ("a.jsonl", b'["text"]\n', r"a\.jsonl:1: no field 'text' \(it is no object\)"),
    ("a.jsonl", b'{"text": 3}\n', r"a\.jsonl:1: field 'text' is int where text belongs"),
    ("a.jsonl.gz", b"no gzip at all", r"a\.jsonl\.gz: the gzip stream is damaged"),
    ("a.parquet", b"PAR1 cut off", r"a\.parquet: the parquet file is damaged after row 0"),
    ("a.csv", b"text\nhello\n", r"a\.csv: its ending is none of"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), FAULTS, ids=[fault[2][:40] for fault in FAULTS])
def test_what_is_wrong_is_told_with_file_and_position(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read(tmp_path / name)


def test_a_gzip_that_ends_too_early_says_how_far_it_could_be_read(tmp_path):
    lines = "".join(json.dumps({"text": f"document {i} {i**7 % 999983}"}) + "\n" for i in range(5000)).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines)[:-5000])
    with pytest.raises(InputError, match=r"damaged or cut short after \d+,\d+ bytes of its content"):
        read(tmp_path / "a.jsonl.gz")


def test_a_parquet_without_the_text_column_names_those_it_has(tmp_path):
    pq.write_table(pa.table({"id": [1], "body": ["hello"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"no column 'text'; its columns are id, body: set data\.text_key"):
        read(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", "body") == ["hello"]
    with pytest.raises(InputError, match="column 'id' holds int64 where text belongs"):
        read(tmp_path / "a.parquet", "id")


def test_bytes_in_a_parquet_column_that_are_not_utf8_are_an_error(tmp_path):
    texts = pa.array([b"fine", b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: .*utf-8"):
        read(tmp_path / "a.parquet")
