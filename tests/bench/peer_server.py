"""Serve a GGUF file with llama.cpp's own HTTP server, out of the wheel `xllamacpp`; runs in that wheel's own venv.

Usage: peer_server.py MODEL.gguf PORT THREADS SLOTS N_CTX
"""

import sys
import threading

import xllamacpp


def main() -> None:
    path, port, threads, slots, n_ctx = sys.argv[1], *map(int, sys.argv[2:6])
    options = xllamacpp.CommonParams()
    options.model.path = path
    options.n_ctx = n_ctx
    options.n_parallel = slots
    options.kv_unified = True
    options.cpuparams.n_threads = threads
    options.hostnames = ["127.0.0.1"]
    options.port = port
    options.warmup = True
    server = xllamacpp.Server(options)
    print("listening on", server.listening_address, flush=True)
    threading.Event().wait()


main()
