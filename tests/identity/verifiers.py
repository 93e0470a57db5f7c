"""Verifiers of a team's own, for LEGATO_AUTH: Firebase by what `harness.google` serves at GOOGLE_URL. All is logged."""

from __future__ import annotations

import logging
import os

import httpx

from harness.google import CERTIFICATES, KEY_SET
from harness.signer import NUMBER, PROJECT
from legato.app import now
from legato.auth import Verifier
from legato.auth.app_check import app_check
from legato.auth.firebase import Firebase, Signed, certificates
from legato.auth.keys import Keys
from legato.auth.users import Owner, Users
from legato.credentials import Credential, Shared


def users() -> Verifier:
    logging.basicConfig(level=logging.DEBUG)
    http, url = httpx.AsyncClient(trust_env=False), os.environ["GOOGLE_URL"]
    account = Credential("owner", Shared("owner", Owner(), now), None)
    keys = Keys(f"{url}{CERTIFICATES}", certificates, http, now)
    return Firebase(PROJECT, Signed(keys), Users(PROJECT, http, account, url), now)


def users_of_apps() -> Verifier:
    http = httpx.AsyncClient(trust_env=False)
    return app_check(NUMBER, users(), http, now, f"{os.environ['GOOGLE_URL']}{KEY_SET}")
