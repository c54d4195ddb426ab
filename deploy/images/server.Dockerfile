# The image of all processes of a cluster: undeterred-api, -orchestrator, -gateway, -agent and -migrate.
# Build from the repository's root: docker build -f deploy/images/server.Dockerfile -t undeterred/server:dev .
ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS build

WORKDIR /tmp/undeterred
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY activities activities
COPY api api
COPY cli cli
COPY database database
COPY harness harness
COPY web web
COPY workers workers
COPY workflows workflows
RUN python -m venv /opt/undeterred \
    && /opt/undeterred/bin/pip install --no-cache-dir -c constraints.txt ./harness ".[server,optuna]"

FROM python:${PYTHON}-slim

RUN useradd --system --uid 10001 --no-create-home undeterred
COPY --from=build /opt/undeterred /opt/undeterred

ENV LANG=C.UTF-8 \
    PATH=/opt/undeterred/bin:$PATH
USER 10001
CMD ["undeterred-api"]
