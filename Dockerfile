# The server and a silo; docs/deploy.md says how to build and run them.
FROM python:3.12-slim AS base
# On hosts without a GPU: the index of PyTorch's small CPU build, as its own install page names it.
ARG TORCH_INDEX=""
RUN test -z "$TORCH_INDEX" || pip install --no-cache-dir torch torchvision --index-url "$TORCH_INDEX"
COPY . /src
RUN pip install --no-cache-dir "/src[privacy]"
RUN useradd --create-home spcacw
USER spcacw
WORKDIR /federation

FROM base AS server
# The SuperLink, and the streams of spcacw deploy run --stream HOST:9095.
EXPOSE 9092 9095
ENTRYPOINT ["spcacw", "deploy", "server", "/federation"]

FROM base AS silo
ENTRYPOINT ["spcacw", "deploy", "silo", "/federation"]
