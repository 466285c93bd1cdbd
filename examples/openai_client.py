"""Talk to a running server with OpenAI's own client (`pip install openai`).

Start one with `make serve`, or name another by `LOCALLLM_SERVER`.
"""

import os

from openai import OpenAI

server = os.environ.get("LOCALLLM_SERVER", "http://127.0.0.1:8484")
client = OpenAI(base_url=f"{server}/v1", api_key=os.environ.get("LOCALLLM_API_KEY", "none"))

for model in client.models.list():
    print("model:", model.id)

stream = client.chat.completions.create(
    model="local-model",
    messages=[
        {"role": "system", "content": "You are a helpful coding assistant."},
        {"role": "user", "content": "What does the Python function zip do?"},
    ],
    max_tokens=64,
    temperature=0,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
