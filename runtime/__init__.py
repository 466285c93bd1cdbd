"""Text in, tokens out: GGUF files, chat templates, the engine and its workers. Knows no plan, no CLI, no HTTP."""
