"""Taking texts, host names and board ids out of what is shared, so that everything else can still be computed.

Hosts and ids become names that are the same wherever they occur in one bundle (pairs need that) and tell nothing
outside it: they are keyed with a secret that is thrown away.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from specjoule.windows.schema import ARROW_SCHEMA

HOST_KEYS = frozenset({"host", "boot_id", "hostname"})
UUID_KEYS = frozenset({"gpu_uuid", "uuid", "device_uuid"})
PATH_KEYS = frozenset({"log"})
"""Paths of the measuring machine; nothing is computed from them."""
MESSAGES = frozenset({"reason_detail", "counters_before", "counters_after"})
"""Columns with words of the engine, in which a host may be named."""
TEXT_FIELDS: dict[str, Any] = {"text": None, "output_token_ids": []}
"""Fields of a request that hold what was said; its digest and counts stay."""


@dataclass(frozen=True)
class Redaction:
    """What is taken out of a bundle."""

    texts: bool = False
    hosts: bool = False
    uuids: bool = False
    known_hosts: frozenset[str] = frozenset()
    """Host names to look for inside messages and settings too."""
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """What is taken out, in words."""
        return tuple(name for name in ("texts", "hosts", "uuids") if getattr(self, name))

    def alias(self, kind: str, value: str) -> str:
        """Return the name that stands for a value throughout this bundle."""
        digest = hmac.new(self.secret, f"{kind}/{value}".encode(), hashlib.sha256).hexdigest()[:10]
        return f"{kind}-{digest}"

    def scalar(self, key: str, value: Any) -> Any:
        """Return what a column or JSON key shows."""
        if not isinstance(value, str):
            return value
        if self.hosts and key in HOST_KEYS:
            return self.alias("boot" if key == "boot_id" else "host", value)
        if self.hosts and key in PATH_KEYS:
            return None
        if self.uuids and key in UUID_KEYS:
            return self.alias("board", value)
        if self.hosts:
            for host in self.known_hosts:
                value = value.replace(host, self.alias("host", host))
        return value


def redact_table(table: pa.Table, redaction: Redaction) -> pa.Table:
    """Return a raw or collected table without what the redaction takes out; schema and metadata stay."""
    for name in (n for n in table.column_names if n in HOST_KEYS | UUID_KEYS | MESSAGES):
        index = table.column_names.index(name)
        values = [redaction.scalar(name, v) for v in table.column(name).to_pylist()]
        table = table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))
    if redaction.texts and "requests" in table.column_names:
        index = table.column_names.index("requests")
        kind = ARROW_SCHEMA.field("requests").type
        waves = table.column(index).to_pylist()
        values = [None if wave is None else [{**request, **TEXT_FIELDS} for request in wave] for wave in waves]
        table = table.set_column(index, table.schema.field(index), pa.array(values, kind))
    return table


def redact_json(value: Any, redaction: Redaction, key: str = "") -> Any:
    """Return a JSON value (a block's record) without what the redaction takes out."""
    if isinstance(value, Mapping):
        return {k: redact_json(v, redaction, str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [redact_json(v, redaction, key) for v in value]
    return redaction.scalar(key, value)


def redact_record(text: str, redaction: Redaction) -> str:
    """Return a block's record as text, redacted."""
    return json.dumps(redact_json(json.loads(text), redaction), indent=2, ensure_ascii=False) + "\n"
