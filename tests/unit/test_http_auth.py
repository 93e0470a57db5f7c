"""A caller is who its token names, or nobody."""

from __future__ import annotations

import pytest

from legato.auth import Principal, authenticate
from legato.errors import Unauthorized


@pytest.mark.parametrize("header", ["Bearer dev:ann-1", "bearer dev:ann-1", "Bearer  dev:ann-1 "])
def test_a_developer_is_the_name_in_the_token(header: str) -> None:
    assert authenticate(header, "dev") == Principal("ann-1")


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "dev:ann", "Basic dev:ann", "Bearer ann", "Bearer dev:", "Bearer dev:a b",
     "Bearer dev:a/b", "Bearer dev:-a", "Bearer dev:" + "a" * 65, "Bearer dev:ann\n", "Bearer dev:ann, Bearer dev:bob"],
)  # fmt: skip
def test_any_other_header_is_nobody_and_is_not_repeated(header: str | None) -> None:
    with pytest.raises(Unauthorized) as refused:
        authenticate(header, "dev")
    assert "ann" not in str(refused.value)


def test_a_developer_is_nobody_under_another_scheme() -> None:
    with pytest.raises(Unauthorized):
        authenticate("Bearer dev:ann", "firebase:project")
