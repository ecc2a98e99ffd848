# extproc, and the fake engine of demos and tests (`docker run IMAGE engine`). Built in two stages: no build tools in the end.
ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python3 -m venv /opt/extproc
# The dependencies alone first: a change of our code does not fetch them again.
COPY pyproject.toml ./
RUN python3 -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" >requirements.txt \
 && /opt/extproc/bin/pip install --no-cache-dir --disable-pip-version-check -r requirements.txt
COPY . .
RUN /opt/extproc/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps . \
 && /opt/extproc/bin/pip uninstall --yes --quiet pip

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/extproc /opt/extproc
ENV PATH=/opt/extproc/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    EXTPROC_POLICY=/etc/extproc/policy.yaml \
    EXTPROC_LISTEN=0.0.0.0:50051 \
    EXTPROC_ADMIN_LISTEN=0.0.0.0:8080 \
    EXTPROC_LOG_FORMAT=json
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
EXPOSE 50051 8080
# Alive means that the event loop answers; whether requests should come here is `/readyz`. No proxy for a call to ourselves.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
  CMD ["python3", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["extproc"]
CMD ["serve"]
