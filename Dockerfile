# vkmnn with Mesa's drivers: GPUs of AMD and Intel through /dev/dri, and llvmpipe without any.
#
#   docker build -t vkmnn .
#   docker run --rm -it --device /dev/dri vkmnn doctor
#   docker run --rm -p 8000:8000 -v "$PWD/models:/models:ro" vkmnn serve /models/chat --host 0.0.0.0 --api-key KEY
#
# NVIDIA's driver comes from the host: --gpus all -e NVIDIA_DRIVER_CAPABILITIES=graphics,utility (docs/deployment.md).

FROM debian:trixie-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python3 -m venv /opt/vkmnn \
 && /opt/vkmnn/bin/pip install --no-cache-dir --require-hashes -r constraints.txt \
 && /opt/vkmnn/bin/pip wheel --no-cache-dir --no-deps -w /wheels . \
 && /opt/vkmnn/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM debian:trixie-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 libvulkan1 mesa-vulkan-drivers ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 vkmnn
COPY --from=build /opt/vkmnn /opt/vkmnn
ENV PATH=/opt/vkmnn/bin:$PATH VKMNN_CACHE_DIR=/home/vkmnn/.cache/vkmnn PYTHONUNBUFFERED=1
USER vkmnn
WORKDIR /home/vkmnn
# Compiled pipelines and downloads survive in this volume, which has the owner of the folder.
RUN mkdir .cache
VOLUME ["/home/vkmnn/.cache"]
EXPOSE 8000
ENTRYPOINT ["vkmnn"]
CMD ["doctor"]
