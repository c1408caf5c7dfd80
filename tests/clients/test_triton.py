"""``tritonclient`` over HTTP."""

from __future__ import annotations

import json

import pytest

np = pytest.importorskip("numpy", reason="run scripts/test_clients")
http = pytest.importorskip("tritonclient.http", reason="run scripts/test_clients")
utils = pytest.importorskip("tritonclient.utils", reason="run scripts/test_clients")

MODEL = "quire-tiny"
PROMPT = "The capital of France is"


@pytest.fixture
def client(server_url):
    with http.InferenceServerClient(server_url.removeprefix("http://")) as made:
        yield made


@pytest.fixture
def headers(key):
    return {"Authorization": f"Bearer {key}"}  # the client adds its own to the very object


def tensor(name, kind, values, **how):
    dtype = object if kind == "BYTES" else utils.triton_to_np_dtype(kind)
    array = np.array(values, dtype=dtype)
    made = http.InferInput(name, list(array.shape), kind)
    return made.set_data_from_numpy(array, **how)


def test_server_and_model(client, headers):
    assert client.is_server_live() and client.is_server_ready(), "probes need no key"
    assert client.is_model_ready(MODEL, headers=headers)
    assert client.is_model_ready(MODEL, "1", headers=headers)
    assert not client.is_model_ready("other", headers=headers)
    assert not client.is_model_ready(MODEL)
    assert client.get_server_metadata(headers=headers)["name"] == "quire"
    metadata = client.get_model_metadata(MODEL, headers=headers)
    assert (metadata["name"], metadata["versions"]) == (MODEL, ["1"])
    assert {"text_input", "max_tokens"} <= {tensor["name"] for tensor in metadata["inputs"]}
    config = client.get_model_config(MODEL, headers=headers)
    assert config["max_batch_size"] == 0 and config["output"][0]["name"] == "text_output"


@pytest.mark.parametrize("binary", [True, False])
def test_infer(client, headers, server_url, binary):
    inputs = [
        tensor("text_input", "BYTES", [PROMPT], binary_data=binary),
        tensor("max_tokens", "INT32", [8], binary_data=binary),
        tensor("temperature", "FP32", [0.0], binary_data=binary),
    ]
    outputs = [http.InferRequestedOutput("text_output", binary_data=binary)]
    answer = client.infer(MODEL, inputs, outputs=outputs, headers={**headers}, request_id="7")
    (text,) = answer.as_numpy("text_output").tolist()
    text = text.decode() if isinstance(text, bytes) else text
    assert answer.get_response()["id"] == "7"
    import httpx

    body = {"text_input": PROMPT, "max_tokens": 8, "temperature": 0}
    url = f"{server_url}/v2/models/{MODEL}/generate"
    generated = httpx.post(url, json=body, headers=headers, timeout=60).json()
    assert generated["text_output"] == text


def test_infer_as_clients_do_by_default(client, headers):
    """Several texts, settings as one JSON text, all tensors as bytes, no output named."""
    settings = json.dumps({"max_tokens": 8, "temperature": 0})
    inputs = [
        tensor("text_input", "BYTES", [[PROMPT], ["Grüße"]]),
        tensor("sampling_parameters", "BYTES", [settings]),
    ]
    answer = client.infer(MODEL, inputs, headers=headers, model_version="1")
    texts = answer.as_numpy("text_output")
    assert texts.shape == (2, 1) and all(isinstance(text, bytes) for (text,) in texts.tolist())


def test_async_infer(client, headers):
    inputs = [tensor("text_input", "BYTES", [PROMPT])]
    waiting = client.async_infer(MODEL, inputs, headers=headers)
    assert waiting.get_result().as_numpy("text_output").shape == (1,)


def test_errors(client, headers):
    inputs = [tensor("text_input", "BYTES", [PROMPT])]
    with pytest.raises(utils.InferenceServerException, match="does not exist") as error:
        client.infer("other", inputs, headers=headers)
    assert error.value.status() == "404"
    with pytest.raises(utils.InferenceServerException, match="must be one of text_input"):
        client.infer(MODEL, [*inputs, tensor("beam_width", "INT32", [2])], headers=headers)
    with pytest.raises(utils.InferenceServerException, match="API key"):
        client.infer(MODEL, inputs)
