# Builds one image of Shoal. `make images` builds all of them; images.py has COMPONENT, EXTRAS and COMPILE of each.
ARG BASE=python:3.12.14-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254
FROM ${BASE} AS base
# The base has no bytecode of the standard library, and a read-only container could not write it: each start would
# compile it again.
RUN if python3 -m pip --version; then python3 -m pip uninstall --yes --root-user-action=ignore pip; fi \
    && python3 -m compileall -q -j 0 -x '(dist|site)-packages|/(ensurepip|idlelib|lib2to3|pydoc_data|test|tkinter|turtledemo)/' \
      "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

# The list of requirements. Layers below are cached while the list is unchanged, even if pyproject.toml changes.
FROM base AS requirements
COPY images.py pyproject.toml /src/
ARG EXTRAS
RUN python3 /src/images.py requirements "${EXTRAS}" > /requirements.txt

# Build tools. No image contains them.
FROM base AS tools
RUN apt-get update && apt-get install --yes --no-install-recommends binutils gcc libc6-dev \
    $(python3 -c 'import os, sysconfig; os.path.exists(sysconfig.get_path("include") + "/Python.h") or print("python3-dev")')
COPY constraints.txt /build/
ENV PIP_CONSTRAINT=/build/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN --mount=type=secret,id=pip,target=/etc/pip.conf python3 -m venv /build && /build/bin/pip install cyclonedx-bom uv

# Third-party packages without unused files: tests, debug symbols, NumPy's Fortran tool and type stubs, and bytecode of the
# Kubernetes client's thousands of unused models.
FROM tools AS packages
# Empty: pip's default torch, which from PyPI includes CUDA. Else uv's --torch-backend: cpu, cu128, cu130.
ARG CUDA
COPY --from=requirements /requirements.txt /build/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf python3 -m venv --without-pip /opt/shoal \
    && echo /opt/shoal/own > "$(/opt/shoal/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/own.pth" \
    && if [ -n "${CUDA}" ] && grep -q ^torch /build/requirements.txt; then /build/bin/uv pip install --no-cache --no-deps \
        --torch-backend="${CUDA}" --python /opt/shoal/bin/python "$(grep ^torch== /build/constraints.txt)"; fi \
    && /build/bin/pip --python /opt/shoal/bin/python install --requirement /build/requirements.txt \
    && find /opt/shoal -type d \( -name tests -o -path '*/numpy/f2py' -o -path '*/kubernetes/*client/*/__pycache__' \) -prune -exec rm -r {} + \
    && find /opt/shoal -path '*/numpy/*' -name '*.pyi' -delete \
    && find /opt/shoal -name '*.cpython-*.so' -exec sh -c '! readelf -SW "$1" | grep -q debug_info || strip --strip-debug "$1"' - {} \;

# The component, compiled or not: only its own directory and the schema are copied.
FROM tools AS own
COPY compile.py LICENSE pyproject.toml README.md /src/
COPY schema/shoal_schema /src/schema/shoal_schema
ARG COMPONENT
ARG COMPILE=1
COPY ${COMPONENT}/shoal_${COMPONENT} /src/${COMPONENT}/shoal_${COMPONENT}
RUN --mount=type=secret,id=pip,target=/etc/pip.conf SHOAL_COMPILE=${COMPILE} /build/bin/pip install --no-deps --target /opt/shoal/own /src \
    && rm -r /opt/shoal/own/bin

FROM packages AS sbom
COPY --from=own /opt/shoal/own /opt/shoal/own
RUN mkdir /sbom && /build/bin/cyclonedx-py environment --output-reproducible --output-file /sbom/shoal.cdx.json /opt/shoal/bin/python

FROM base AS image
ARG SYSTEM_PACKAGES
RUN if [ -n "${SYSTEM_PACKAGES}" ]; then apt-get update && apt-get install --yes --no-install-recommends ${SYSTEM_PACKAGES} \
      && rm -rf /var/lib/apt/lists/*; fi
COPY --from=packages /opt/shoal /opt/shoal
COPY --from=own /opt/shoal/own /opt/shoal/own
COPY --from=sbom /sbom /usr/share/sbom
ENV PATH=/opt/shoal/bin:${PATH} PYTHONUNBUFFERED=1
ARG COMPONENT
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="shoal ${COMPONENT}" org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"
STOPSIGNAL SIGTERM
USER 65532:65532

FROM image AS operator
ENTRYPOINT ["python", "-m", "shoal_operator"]

FROM image AS proxy
ENTRYPOINT ["python", "-m", "shoal_proxy"]

FROM image AS runtime
ENTRYPOINT ["python", "-m", "shoal_runtime"]
