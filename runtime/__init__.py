"""Text in, tokens out: GGUF files, chat templates, the engine and its worker processes. Knows no plan, no CLI, no HTTP."""
