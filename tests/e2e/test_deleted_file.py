"""A file that is deleted under its loaded model is gone from the list, and the model goes on until it is unloaded."""

from __future__ import annotations

import json
import shutil

QUESTION = {"model": "copy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def answer_to(http, plan):
    return json.loads(http.post("/admin/plans", json={"plan": plan}).text.splitlines()[-1])


def test_a_deleted_file_leaves_the_loaded_model_and_no_entry(server, model_path, tmp_path):
    file = tmp_path / "models" / "copy.gguf"
    file.parent.mkdir()
    shutil.copy(model_path, file)
    running = server("--model", "copy", "--n-ctx", "256", env={"LOCALLLM_MODELS_DIR": str(file.parent)})
    with running.client() as http:
        file.unlink()

        assert answer_to(http, {"command": "models.list"})["data"]["models"] == []
        (loaded,) = answer_to(http, {"command": "status"})["data"]["models"]
        assert (loaded["model_id"], loaded["state"]) == ("copy", "ready")
        assert http.post("/v1/chat/completions", json=QUESTION).status_code == 200
        assert answer_to(http, {"command": "models.unload", "model": "copy"})["data"]["unloaded"] == ["copy"]
        assert answer_to(http, {"command": "status"})["data"]["models"] == []
        gone = http.post("/v1/chat/completions", json=QUESTION)
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
