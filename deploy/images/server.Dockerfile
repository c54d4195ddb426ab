# The image of all processes of a cluster: undeterred-api, -orchestrator, -gateway, -agent and -migrate.
# Build from the repository's root: docker build -f deploy/images/server.Dockerfile -t undeterred/server:dev .
# What is installed is pinned by its hashes, and listed in /opt/undeterred/sbom.cdx.json (CycloneDX). README.md beside this file.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build

WORKDIR /tmp/undeterred
COPY deploy/images/server.requirements.txt deploy/images/sbom.requirements.txt ./
RUN python -m venv /opt/undeterred && python -m venv /opt/sbom \
    && /opt/undeterred/bin/pip install --no-cache-dir --require-hashes --no-deps -r server.requirements.txt \
    && /opt/sbom/bin/pip install --no-cache-dir --require-hashes --no-deps -r sbom.requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY activities activities
COPY api api
COPY cli cli
COPY database database
COPY harness harness
COPY web web
COPY workers workers
COPY workflows workflows
# nothing is fetched any more: also what builds it is there
RUN /opt/undeterred/bin/pip install --no-cache-dir --no-index --no-deps --no-build-isolation ./harness . \
    && /opt/undeterred/bin/pip check \
    && /opt/sbom/bin/cyclonedx-py environment --output-reproducible --of JSON -o /opt/undeterred/sbom.cdx.json \
        --pyproject pyproject.toml /opt/undeterred/bin/python \
    && /opt/undeterred/bin/pip uninstall --yes --quiet pip

FROM ${BASE}

RUN useradd --system --uid 10001 --no-create-home undeterred
COPY --from=build /opt/undeterred /opt/undeterred

ENV LANG=C.UTF-8 \
    PATH=/opt/undeterred/bin:$PATH
USER 10001
CMD ["undeterred-api"]
