"""Assertions of the contract are told in full."""

import pytest

pytest.register_assert_rewrite("journal.contract")
