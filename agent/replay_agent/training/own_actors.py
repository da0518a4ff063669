"""Access for actors: how the trainer's own actors connect to the server and the learner, and who else may join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import grpc
from replay_client.security import (
    TLS_PREFIX,
    TOKEN_FILE_SUFFIX,
    TOKEN_VARIABLE,
    Access,
    Tls,
    token_from_environment,
)
from replay_proto.access.exposure import is_loopback

from replay_agent.distributed.learner_access import LearnerAccess
from replay_agent.distributed.learner_client import LEARNER_TLS_PREFIX, LEARNER_TOKEN_VARIABLE
from replay_agent.processes.actor_pool import ActorsFailError
from replay_agent.processes.own_access import OwnAccess
from replay_agent.settings.train_settings import TrainSettings

CONNECT_TIMEOUT_S = 10.0
"""Time limit for connecting to the learner, which takes a few milliseconds on the same machine."""
_LEARNER_CA = f"{LEARNER_TLS_PREFIX}_CA"


def check_learner(learner: str, environment: Mapping[str, str]) -> None:
    """Check that actors with these environment variables can connect to the learner by TLS.

    Without this check, actors that cannot connect would retry forever. Nothing is checked if the variables do not
    enable TLS.

    Raises:
        ActorsFailError: the TLS connection failed; the message says what to set.
        InvalidArgumentError: a certificate file cannot be read.
    """
    tls = Tls.from_environment(LEARNER_TLS_PREFIX, environment)
    if tls is None:
        return
    with Access(tls=tls).open_channel(learner, ()) as channel:
        try:
            grpc.channel_ready_future(channel).result(CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise ActorsFailError(
                f"actors of this machine cannot connect to the learner at {learner} by TLS: expected "
                f"{_LEARNER_CA} to name the authority of --learner-tls-cert; {LEARNER_TLS_PREFIX}_SERVER_NAME a "
                f"name in this certificate, if it does not have {learner.rpartition(':')[0]}; and, with "
                f"--learner-tls-client-ca, {LEARNER_TLS_PREFIX}_CERT and {LEARNER_TLS_PREFIX}_KEY a certificate "
                "that this authority signed"
            ) from None


def declared_access(settings: TrainSettings) -> LearnerAccess:
    """Return the access control that the settings specify for the learner's port."""
    return LearnerAccess(
        settings.learner_tls_cert, settings.learner_tls_key, settings.learner_tls_client_ca, settings.learner_tokens
    )


def needs_own_access(settings: TrainSettings) -> bool:
    """Whether the run must create a token, because its server or learner requires one."""
    return settings.server is None or _learner_wants_own_token(settings)


def learner_access(settings: TrainSettings, own: OwnAccess | None) -> LearnerAccess:
    """Return the learner's configured access control, with the run's own token if the learner is to require it."""
    access = declared_access(settings)
    return replace(access, tokens=own.tokens_file) if own and _learner_wants_own_token(settings) else access


def actor_environment(settings: TrainSettings, own: OwnAccess | None, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for actors started by the trainer.

    Variables for TLS with the server are left out if the run starts its own server. Variables for TLS with the learner
    are left out if the learner has no certificate. If it has one, actors trust it, unless the variables select
    other CAs for the learner.

    Args:
        settings: settings of the run.
        own: the run's own token, if it needs one.
        variables: environment variables of this process.
    """
    with_tls = settings.learner_tls_cert is not None
    plain = [*([] if settings.server else [TLS_PREFIX]), *([] if with_tls else [LEARNER_TLS_PREFIX])]
    found = {name: value for name, value in variables.items() if not name.startswith(tuple(plain))}
    if with_tls and not (found.get(_LEARNER_CA) or found.get(LEARNER_TLS_PREFIX)):
        found[_LEARNER_CA] = str(settings.learner_tls_cert)
    learner_token = token_from_environment(LEARNER_TOKEN_VARIABLE, found) or token_from_environment(environment=found)
    if own and _learner_wants_own_token(settings):
        learner_token = own.token
    if isinstance(learner_token, Path):
        found[f"{LEARNER_TOKEN_VARIABLE}{TOKEN_FILE_SUFFIX}"] = str(learner_token)
    elif learner_token:
        found[LEARNER_TOKEN_VARIABLE] = learner_token
    if own and settings.server is None:
        found[TOKEN_VARIABLE] = own.token
    return found


def _learner_wants_own_token(settings: TrainSettings) -> bool:
    """Whether the learner must require the run's own token, because the settings specify no other protection.

    If the user starts both the server and the actors, the run requires no token of its own.
    """
    access = declared_access(settings).protection
    if access.tokens or access.client_certificates or settings.learner_insecure:
        return False
    return is_loopback(settings.learner_host) and (settings.server is None or settings.actors > 0)
