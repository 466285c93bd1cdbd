"""localllm: run GGUF models on your own machine, driven by plans that can be inspected and replayed."""
