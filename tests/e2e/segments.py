"""The stored segments of a session, changed as time and TTL change them."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import Any

import httpx


class Segments:
    """A session's segments, by their first seq, changed behind the servers' backs."""

    def __init__(self, journal: str, session: str) -> None:
        """`journal` as in LEGATO_JOURNAL."""
        self._journal, self._session = journal, session

    async def firsts(self) -> list[int]:
        if self._journal.startswith("sqlite"):
            return [row[0] for row in self._sqlite("SELECT first FROM segments WHERE session = ? ORDER BY first")]
        listed = await self._request("GET", params={"pageSize": "300", "mask.fieldPaths": "first"})
        return sorted(int(document["fields"]["first"]["integerValue"]) for document in listed["documents"])

    async def expire(self, first: int) -> None:
        """It has run out, and is still there."""
        if self._journal.startswith("sqlite"):
            self._sqlite("UPDATE segments SET expires_at = 1 WHERE session = ? AND first = ?", first)
        else:
            run_out = {"fields": {"expire_at": {"timestampValue": "2001-01-01T00:00:00Z"}}}
            await self._request("PATCH", f"/{first:012d}", {"updateMask.fieldPaths": "expire_at"}, run_out)

    async def delete(self, first: int) -> None:
        if self._journal.startswith("sqlite"):
            self._sqlite("DELETE FROM segments WHERE session = ? AND first = ?", first)
        else:
            await self._request("DELETE", f"/{first:012d}")

    def _sqlite(self, statement: str, *values: int) -> list[Any]:
        with closing(sqlite3.connect(self._journal.removeprefix("sqlite:///"), timeout=30)) as file, file:
            return file.execute(statement, (self._session, *values)).fetchall()

    async def _request(self, method: str, path: str = "", params: Any = None, body: Any = None) -> Any:
        project, emulator = self._journal.split("/")[2], os.environ["FIRESTORE_EMULATOR_HOST"]
        documents = f"http://{emulator}/v1/projects/{project}/databases/(default)/documents"
        url = f"{documents}/users/ann/agent_sessions/{self._session}/journal{path}"
        async with httpx.AsyncClient(trust_env=False, verify=False, headers={"Authorization": "Bearer owner"}) as http:
            return (await http.request(method, url, params=params, json=body)).raise_for_status().json()
