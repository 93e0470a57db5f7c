"""Owners are killed at random moments of their turns, and no client can tell from what its turn has come to.

Killed are the owners of a hundred turns and more on each journal, and of a fifth of that with Gemini as the
model, and with ADK; `GEMINI_ROUNDS=5` and `ADK_ROUNDS=5` make it as many.
"""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from chaos.campaign import TURNS, Campaign, Killed
from chaos.cluster import cluster
from chaos.lives import RULES
from conftest import Place
from e2e.conftest import journal_at
from e2e.duo import HERE, Where
from harness import gemini_at
from local_gemini import LocalGemini

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = {
    "scripted": 5,
    "gemini": int(os.environ.get("GEMINI_ROUNDS", "1")),
    "adk": int(os.environ.get("ADK_ROUNDS", "1")),
}
AGENTS = {"scripted": "witness", "gemini": "witness_gemini", "adk": "witness_adk"}
PAID = {"scripted": ["3-1", "4-1"], "gemini": ["3-1", "4-1"], "adk": ["6-1", "8-1"]}
"""The calls that pay. ADK makes each call of an answer by itself."""


async def campaign(place: Place, model: str) -> Killed:
    async with LocalGemini() as gemini:
        env = {"LEGATO_AGENT": f"chaos.{AGENTS[model]}:agent", **gemini_at(gemini.url)}
        async with cluster(place, **env) as on:
            return await Campaign(on, SEED).run(ROUNDS[model])


@pytest.fixture(scope="module", params=ROUNDS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=HERE)
def killed(request: pytest.FixtureRequest, model: str, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    where: Where = request.param
    directory = tmp_path_factory.mktemp(f"kills-{where.store}-{model}")
    return asyncio.run(campaign(Place(journal_at(where, directory, request), where.face, directory), model))


def test_an_undisturbed_turn_keeps_the_rules(killed: Killed, model: str) -> None:
    calm = killed.calm
    assert calm.output == "".join(f"w{n} " for n in range(1, 43))
    assert (calm.paid, calm.takeovers) == ([f"-/t/{call}" for call in PAID[model]], 0)
    assert [len(json.loads(asked)) for asked in calm.asked] == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("rule", RULES)
def test_whatever_the_moment_at_which_its_owner_is_killed(killed: Killed, model: str, rule: str) -> None:
    assert killed.moments >= ROUNDS[model] * TURNS
    assert [life.session for life in killed.lives if not RULES[rule](life, killed.calm)] == [], f"SEED={SEED}"
