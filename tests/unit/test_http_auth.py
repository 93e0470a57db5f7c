"""A caller is who its token names, or nobody."""

from __future__ import annotations

import pytest

from legato.auth import Developers
from legato.errors import Unauthorized
from legato.principal import Principal

NOW = 1_800_000_000_000


async def caller(header: str | None) -> Principal:
    return await Developers(lambda: NOW).verify({} if header is None else {"authorization": header})


@pytest.mark.parametrize("header", ["Bearer dev:ann-1", "bearer dev:ann-1", "Bearer  dev:ann-1 "])
async def test_a_developer_is_the_name_in_the_token(header: str) -> None:
    assert await caller(header) == Principal("ann-1")


async def test_a_developer_is_nobody_from_the_time_in_the_token_on() -> None:
    assert await caller(f"Bearer dev:ann:{NOW + 1}") == Principal("ann", NOW + 1)
    with pytest.raises(Unauthorized, match="expired"):
        await caller(f"Bearer dev:ann:{NOW}")


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "dev:ann", "Basic dev:ann", "Bearer ann", "Bearer dev:", "Bearer dev:a b",
     "Bearer dev:a/b", "Bearer dev:-a", "Bearer dev:" + "a" * 65, "Bearer dev:ann\n", "Bearer dev:ann, Bearer dev:bob",
     "Bearer dev:ann:", "Bearer dev:ann:x", "Bearer dev:ann:-1", "Bearer dev:ann:1:1"],
)  # fmt: skip
async def test_any_other_header_is_nobody_and_is_not_repeated(header: str | None) -> None:
    with pytest.raises(Unauthorized) as refused:
        await caller(header)
    assert "ann" not in str(refused.value)
