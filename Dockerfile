# Two images:
#   docker build --target server -t replay-service:server .   the service and the `replay` command, without torch
#   docker build -t replay-service .                          the same, plus the trainer and its actors
#
# If the default index has only CUDA builds of torch, add an index of CPU wheels to save gigabytes:
# `--build-arg PIP_EXTRA_INDEX_URL=...`. Pip reads this variable from the environment.
ARG PYTHON_IMAGE=python:3.11-slim

# Shared by both images: a user, an environment, and the dependencies of the service.
FROM ${PYTHON_IMAGE} AS service-dependencies
ARG PIP_EXTRA_INDEX_URL=
ENV PATH=/opt/replay/application/bin:/opt/replay/environment/bin:$PATH \
    PYTHONPATH=/opt/replay/application \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/cache/numba \
    PIP_BUILD_CONSTRAINT=/opt/replay/constraints.txt \
    PIP_CONSTRAINT=/opt/replay/constraints.txt \
    PIP_NO_CACHE_DIR=1
RUN useradd --uid 10001 --create-home replay \
    && install --directory /var/cache/numba \
    && install --directory --owner=replay /data /runs
WORKDIR /opt/replay/source
COPY constraints.txt /opt/replay/
COPY pyproject.toml ./
RUN touch README.md \
    && python -m venv /opt/replay/environment \
    && pip install --quiet --upgrade pip \
    && pip install --quiet --only-deps '.[server,cli]'

# The project with its compiled kernels. Numba discards a compiled kernel if the timestamp of its source has changed.
# Layers store only whole seconds, so all files get a round date. The image's cache belongs to root, and the
# service only reads it. On another type of CPU, it compiles the kernels again, into its user's cache.
FROM service-dependencies AS application
COPY . .
RUN pip install --quiet --no-deps --no-compile --target /opt/replay/application . \
    && find /opt/replay/application -exec touch --date=2000-01-01 {} + \
    && python -m compileall -q /opt/replay/application
RUN python -m replay_server.process.warming

FROM service-dependencies AS server
COPY --from=application /opt/replay/application /opt/replay/application
COPY --from=application /var/cache/numba /var/cache/numba
COPY docker/healthcheck.py /opt/replay/
USER replay
WORKDIR /data
# The server listens on all interfaces, so it requires tokens, client certificates or --insecure: see docs/operations/security.md.
ENV REPLAY_SERVER_HOST=0.0.0.0
EXPOSE 50051
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s CMD ["python", "/opt/replay/healthcheck.py", "localhost:50051"]
ENTRYPOINT ["replay-server"]

FROM service-dependencies AS trainer-dependencies
RUN pip install --quiet --only-deps '.[server,cli,agent,atari]' \
    # Remove torch's headers and its tests.
    && cd /opt/replay/environment/lib/python3*/site-packages/torch && rm -rf include test bin/test_*

FROM trainer-dependencies AS trainer
COPY --from=application /opt/replay/application /opt/replay/application
COPY --from=application /var/cache/numba /var/cache/numba
USER replay
WORKDIR /home/replay
ENV REPLAY_TRAIN_RUNS_DIR=/runs
CMD ["replay-train"]
