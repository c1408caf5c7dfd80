# docker build -t quire . && docker run -p 8000:8000 quire
# Models: docker run -p 8000:8000 -v PATH_OF_MODELS:/models:ro quire serve /models/NAME --host 0.0.0.0
# scripts/check_dockerfile runs these steps where there is no Docker.
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates g++ make python3-dev python3-venv
WORKDIR /source
COPY . .
RUN scripts/build_wheels
# Nothing is compiled here: wheels alone, ours and those it needs.
RUN python3 -m venv /opt/quire && /opt/quire/bin/pip install --no-cache-dir --only-binary :all: dist/*.whl && /opt/quire/bin/pip uninstall -qy setuptools pip

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home quire
COPY --from=build /opt/quire /opt/quire
ENV PATH=/opt/quire/bin:/usr/local/bin:/usr/bin:/bin
WORKDIR /home/quire
USER quire
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["quire"]
CMD ["serve", "--host", "0.0.0.0"]
