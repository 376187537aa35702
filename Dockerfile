# Debian 12 with Theano, Lasagne and the command platoon, on the CPU. It runs the demo:
#
#     docker build -t platoon-plugins . && docker run --rm -it platoon-plugins
#
# A script of yours, with room for a larger model (docker gives 64 MB of shared memory by itself):
#
#     docker run --rm -it --shm-size=2g -v "$PWD:/work" -w /work platoon-plugins platoon launch -n 4 train.py
FROM debian:12-slim

# Theano compiles at run time; Python's headers and BLAS are for what it compiles.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ libopenblas-dev python3.11-dev python3.11-venv \
    && rm -rf /var/lib/apt/lists/*

COPY . /opt/platoon-plugins
RUN python3.11 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir "/opt/platoon-plugins[lasagne,examples]"

# As a user: what Theano compiles goes to the home folder, the demo's plot and logs to the working directory.
RUN useradd --create-home user && install -d -o user /home/user/demo
USER user
WORKDIR /home/user/demo
ENV PATH=/opt/venv/bin:$PATH

CMD ["platoon", "launch", "-n", "2", "/opt/platoon-plugins/examples/lasagne_digits.py"]
