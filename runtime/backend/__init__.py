"""What turns a batch of tokens into logits: llama.cpp, or the echo that ships as its fake."""
