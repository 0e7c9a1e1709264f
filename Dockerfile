# Adds Longspan to vLLM's image, so that hosts, Slurm and Kubernetes run both from one digest:
#
#     docker build --build-arg VLLM=v0.20.0 -t registry.example.com/longspan-vllm:v0.20.0 .
#
# vLLM's image holds the engine for NVIDIA GPUs; VLLM_IMAGE names another one (rocm/vllm for AMD's).
ARG VLLM_IMAGE=vllm/vllm-openai
ARG VLLM=v0.20.0
FROM ${VLLM_IMAGE}:${VLLM}

# Ray is not in every vLLM image. --no-deps: what Longspan needs beside it is in vLLM's own requirements, and nothing
# here may change the versions that this image was tested with. The last line fails the build where something is missing.
COPY pyproject.toml README.md LICENSE /opt/longspan/
COPY src /opt/longspan/src
RUN python3 -m pip install --no-cache-dir "hatchling>=1.27" \
 && python3 -m pip install --no-cache-dir --no-deps --no-build-isolation /opt/longspan \
 && { python3 -c "import ray" 2>/dev/null || python3 -m pip install --no-cache-dir "ray>=2.48"; } \
 && { python3 -c "import rich, click" 2>/dev/null || python3 -m pip install --no-cache-dir "rich>=13.7" "click>=8.1"; } \
 && longspan --version && python3 -c "import aiohttp, click, httptools, huggingface_hub, rich, uvloop, ray, vllm"

# vLLM's image starts a server of its own; this one starts whatever it is told to.
ENTRYPOINT []
CMD ["longspan", "--help"]
