# syntax=docker/dockerfile:1
# The command and the dashboard's pictures (`tencache gui --screenshot`), from the Debian packages that cpack makes;
# docs/install.md says how to use it.
#
#   docker build -t tencache .
#   docker run --rm -v "$PWD:/work" tencache compare step.trace.jsonl.zst --machine g10-a100

FROM debian:12-slim AS build
COPY packaging/debian-packages.txt /
RUN apt-get update && apt-get install -y --no-install-recommends dpkg-dev file \
      $(awk '$1 == "build" || $1 == "gui" { sub(/[|].*/, "", $2); print $2 }' /debian-packages.txt) \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN cmake -S /src --preset release -B /build -DTENCACHE_TORCH=OFF -DTENCACHE_TESTS=OFF \
      -DTENCACHE_BENCH=OFF -DTENCACHE_PYTHON=OFF -DTENCACHE_MPI=OFF \
    && cmake --build /build && cd /build && cpack -G DEB && mkdir /packages && mv ./*.deb /packages

FROM debian:12-slim
RUN --mount=type=bind,from=build,source=/packages,target=/packages \
    apt-get update && apt-get install -y --no-install-recommends /packages/*.deb \
      libgl1-mesa-dri fonts-dejavu-core \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home tencache
USER tencache
WORKDIR /work
ENTRYPOINT ["tencache"]
CMD ["--help"]
