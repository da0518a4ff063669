"""How actors that the trainer starts itself reach server and learner: their variables, and who else may join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import grpc
from replay_client.security import TLS_PREFIX, TOKEN_VARIABLE, Tls, open_channel
from replay_proto.access.exposure import is_loopback

from replay_agent.distributed.learner_access import LearnerAccess
from replay_agent.distributed.learner_client import LEARNER_TLS_PREFIX, LEARNER_TOKEN_VARIABLE
from replay_agent.processes.actor_pool import ActorsFailError
from replay_agent.processes.own_access import OwnAccess
from replay_agent.settings.train_settings import TrainSettings

CONNECT_TIMEOUT_S = 10.0
"""A connection within one machine takes some milliseconds."""
_LEARNER_CA = f"{LEARNER_TLS_PREFIX}_CA"


@dataclass(frozen=True)
class OwnActors:
    """What the actors of one run are started with.

    Attributes:
        server: HOST:PORT of the replay server.
        learner: HOST:PORT of the learner's service.
        environment: their variables, tokens among them.
    """

    server: str
    learner: str
    environment: Mapping[str, str]

    def check_learner(self) -> None:
        """Connect to the learner as an actor would, which otherwise tries for ever.

        Raises:
            ActorsFailError: there is no connection by TLS; the message says what to set.
            InvalidArgumentError: a file of certificates cannot be read.
        """
        tls = Tls.from_environment(LEARNER_TLS_PREFIX, self.environment)
        if tls is None:
            return
        with open_channel(self.learner, tls, ()) as channel:
            try:
                grpc.channel_ready_future(channel).result(CONNECT_TIMEOUT_S)
            except grpc.FutureTimeoutError:
                raise ActorsFailError(
                    f"actors of this machine cannot connect to the learner at {self.learner} by TLS: expected "
                    f"{_LEARNER_CA} to name the authority of --learner-tls-cert; {LEARNER_TLS_PREFIX}_SERVER_NAME a "
                    f"name in this certificate, if it does not have {self.learner.rpartition(':')[0]}; and, with "
                    f"--learner-tls-client-ca, {LEARNER_TLS_PREFIX}_CERT and {LEARNER_TLS_PREFIX}_KEY a certificate "
                    "that this authority signed"
                ) from None


def declared_access(settings: TrainSettings) -> LearnerAccess:
    """How the settings protect the learner's port."""
    return LearnerAccess(
        settings.learner_tls_cert, settings.learner_tls_key, settings.learner_tls_client_ca, settings.learner_tokens
    )


def needs_own_access(settings: TrainSettings) -> bool:
    """Whether the run starts a server that wants a token of its own, or its learner does."""
    return settings.server is None or _learner_wants_own_token(settings)


def learner_access(settings: TrainSettings, own: OwnAccess | None) -> LearnerAccess:
    """Who may join: as the settings say, or whoever has the run's own token where they say nothing."""
    access = declared_access(settings)
    return replace(access, tokens=own.tokens_file) if own and _learner_wants_own_token(settings) else access


def actor_environment(settings: TrainSettings, own: OwnAccess | None, variables: Mapping[str, str]) -> dict[str, str]:
    """Variables for actors of our own.

    They use TLS where there is some, and not where ours speak plainly; they trust the learner's certificate itself
    unless the variables say whom to trust.

    Args:
        settings: of the run.
        own: the run's own token, if it needs one.
        variables: those of this process.
    """
    with_tls = settings.learner_tls_cert is not None
    plain = [*([] if settings.server else [TLS_PREFIX]), *([] if with_tls else [LEARNER_TLS_PREFIX])]
    found = {name: value for name, value in variables.items() if not name.startswith(tuple(plain))}
    if with_tls and not (found.get(_LEARNER_CA) or found.get(LEARNER_TLS_PREFIX)):
        found[_LEARNER_CA] = str(settings.learner_tls_cert)
    learner_token = found.get(LEARNER_TOKEN_VARIABLE) or found.get(TOKEN_VARIABLE)
    if own and _learner_wants_own_token(settings):
        learner_token = own.token
    if learner_token:
        found[LEARNER_TOKEN_VARIABLE] = learner_token
    if own and settings.server is None:
        found[TOKEN_VARIABLE] = own.token
    return found


def _learner_wants_own_token(settings: TrainSettings) -> bool:
    """Whether nothing else keeps other users of this machine from joining, and the user expects nobody to.

    With a server and actors that the user starts, the user decides about tokens.
    """
    access = declared_access(settings).protection
    if access.tokens or access.client_certificates or settings.learner_insecure:
        return False
    return is_loopback(settings.learner_host) and (settings.server is None or settings.actors > 0)
