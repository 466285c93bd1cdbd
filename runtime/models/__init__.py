"""What lies on disk: GGUF headers, the catalog of models, profiles, devices and memory estimates."""
