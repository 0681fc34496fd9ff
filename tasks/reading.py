"""Documents out of one file: .txt, .jsonl, .parquet, the first two also gzipped.

A file is read front to back with a few MiB in memory. What is wrong with it is told with file and position: the byte
that is not UTF-8, the line that is not JSON, the place where a gzip ends too early, the columns of a parquet file that
lacks the one asked for.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.fetch import suffixes
from tasks.stage import InputError

TEXT_DOCUMENT_CHARS = 10_000  # a .txt file is cut into documents of about this length
PARQUET_BATCH = 512  # rows decoded at a time


def read_documents(file: Path, name: str, text_key: str) -> Iterator[str]:
    """The documents of `file`, which errors call `name`; its format is told by the ending of `name`.

    `text_key` is the field (.jsonl) or column (.parquet) that holds the text. A .txt file is one document if it
    is short; a long one is cut into documents of about 10,000 characters, at a blank line or, where none comes
    for as long again, at the end of a line. Raises InputError.
    """
    ending = suffixes(name)
    if ending.endswith((".txt", ".txt.gz")):
        return _text_documents(lines(file, name))
    if ending.endswith((".jsonl", ".jsonl.gz")):
        return _json_texts(file, name, text_key)
    if ending.endswith(".parquet"):
        return _parquet_column(file, name, text_key)
    raise InputError(f"{name}: its ending is none of .txt, .jsonl (both also with .gz) and .parquet.")


def lines(file: Path, name: str) -> Iterator[str]:
    """Decoded lines with their ends; a UTF-8 byte order mark at the start is dropped."""
    offset = 0
    zipped = suffixes(name).endswith(".gz")
    with _open(file, zipped) as stream:
        while True:
            try:
                line = stream.readline()
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise InputError(
                    f"{name}: the gzip stream is damaged or cut short after {offset:,} bytes of its content ({error}): "
                    "fetch or write the file again."
                ) from error
            if not line:
                return
            try:
                yield (line.removeprefix(b"\xef\xbb\xbf") if offset == 0 else line).decode()
            except UnicodeDecodeError as error:
                mark = 3 if offset == 0 and line.startswith(b"\xef\xbb\xbf") else 0
                unzipped = " of its unzipped content" if zipped else ""
                raise InputError(
                    f"{name}: byte {offset + mark + error.start:,}{unzipped} (0x{error.object[error.start]:02x}) is "
                    "not UTF-8: convert the file to UTF-8."
                ) from error
            offset += len(line)


def json_lines(file: Path, name: str) -> Iterator[tuple[int, Any]]:
    """(line number from 1, value) of each line that is not blank."""
    for number, line in enumerate(lines(file, name), 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line.rstrip("\r\n"))
        except ValueError as error:
            position = getattr(error, "colno", 1)
            reason = getattr(error, "msg", str(error))
            raise InputError(f"{name}:{number}: not JSON at column {position} ({reason}).") from error


def parquet_rows(
    file: Path, name: str, check: Callable[[pa.Schema], list[str]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, row) with the columns that `check` chooses from the schema; it may raise InputError."""
    number = 0
    try:
        with pq.ParquetFile(file) as table:
            columns = check(table.schema_arrow)
            for batch in table.iter_batches(PARQUET_BATCH, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(
            f"{name}: the parquet file is damaged after row {number:,} ({reason}): fetch or write it again."
        ) from error


def _open(file: Path, zipped: bool) -> BinaryIO:
    return gzip.open(file, "rb") if zipped else file.open("rb")  # type: ignore[return-value]


def _text_documents(text_lines: Iterator[str]) -> Iterator[str]:
    document: list[str] = []
    characters = 0
    for line in text_lines:
        document.append(line)
        characters += len(line)
        long_enough = characters >= TEXT_DOCUMENT_CHARS and not line.strip()
        if long_enough or characters >= 2 * TEXT_DOCUMENT_CHARS:
            yield "".join(document).strip("\r\n")
            document, characters = [], 0
    if document:
        yield "".join(document).strip("\r\n")


def _json_texts(file: Path, name: str, text_key: str) -> Iterator[str]:
    for number, record in json_lines(file, name):
        if not isinstance(record, dict) or text_key not in record:
            there = f"it has {', '.join(map(repr, record))}" if isinstance(record, dict) else "it is no object"
            raise InputError(f"{name}:{number}: no field '{text_key}' ({there}): set data.text_key.")
        if not isinstance(record[text_key], str):
            kind = type(record[text_key]).__name__
            raise InputError(f"{name}:{number}: field '{text_key}' is {kind} where text belongs.")
        yield record[text_key]


def _parquet_column(file: Path, name: str, text_key: str) -> Iterator[str]:
    def check(schema: pa.Schema) -> list[str]:
        if text_key not in schema.names:
            raise InputError(
                f"{name}: no column '{text_key}'; its columns are {', '.join(schema.names)}: set data.text_key."
            )
        kind = schema.field(text_key).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InputError(f"{name}: column '{text_key}' holds {kind} where text belongs.")
        return [text_key]

    for _, row in parquet_rows(file, name, check):
        yield row[text_key] or ""
