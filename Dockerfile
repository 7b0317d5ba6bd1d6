# Regard in a container.
#   docker build -t regard .                                              # for a CPU
#   docker build -t regard:gpu --build-arg INDEX=https://download.pytorch.org/whl/cu130 .   # for NVIDIA's GPUs
#   docker run --rm -it -u "$(id -u)" -v "$PWD:/work" regard train write my.txt --out runs/mine
#   docker run --rm -it -u "$(id -u)" --gpus all -v "$PWD:/work" -p 7447:7447 regard:gpu serve runs/mine --host 0.0.0.0
# -u: what is written to your folder is yours. Without it, the user has the number 1000.
FROM python:3.12-slim

# Torch's packages for a GPU bring CUDA's libraries along, so both need no more than Python.
ARG INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$INDEX" --extra-index-url https://pypi.org/simple "torch>=2.11"

# torch.compile needs a C++ compiler, and Triton one of C, which comes with it.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

COPY pyproject.toml README.md LICENSE /src/
COPY regard /src/regard
RUN pip install --no-cache-dir /src

# WORKDIR would make a folder of root's.
RUN useradd --create-home --uid 1000 user && install --directory --owner user --group user /work
USER user
WORKDIR /work
ENTRYPOINT ["regard"]
CMD ["--help"]
