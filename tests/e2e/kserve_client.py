"""kserve_client.py HOST:PORT: asks the deployment "digits" with tritonclient, in every way that it has, and compares with
what /v1 answers to the same samples."""
import sys
import urllib.request

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

address = sys.argv[1]
client = triton.InferenceServerClient(address, concurrency=4)


def expected(images):
    request = urllib.request.Request(
        f"http://{address}/v1/digits", images.tobytes(),
        {"Content-Type": "application/octet-stream", "Tensor-Dtype": "float32",
         "Tensor-Shape": ", ".join(map(str, images.shape))})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
        return np.frombuffer(response.read(), np.float32).reshape(len(images), 10), response.headers["Weights-Version"]


def input_of(images, binary):
    tensor = triton.InferInput("input", images.shape, np_to_triton_dtype(images.dtype))
    tensor.set_data_from_numpy(images, binary_data=binary)
    return [tensor]


def refused(why, call):
    try:
        call()
    except InferenceServerException as error:
        assert why in error.message(), error.message()
        return
    raise AssertionError("accepted: " + why)


assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("digits")
assert not client.is_model_ready("letters")
assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
metadata = client.get_model_metadata("digits")
assert metadata["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 1, 28, 28]}], metadata
assert metadata["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 10]}], metadata
version = metadata["versions"][0]
assert client.is_model_ready("digits", version) and not client.is_model_ready("digits", "99")

images = np.random.default_rng(7).normal(size=(3, 1, 28, 28)).astype(np.float32)
outputs, its_version = expected(images)
assert its_version == version
ways = 0
for sent_binary in (True, False):
    for asked in (None, [triton.InferRequestedOutput("output", binary_data=True)],
                  [triton.InferRequestedOutput("output", binary_data=False)]):
        for model_version in ("", version):
            result = client.infer("digits", input_of(images, sent_binary), outputs=asked, model_version=model_version,
                                  request_id="r7", timeout=30_000_000)
            response = result.get_response()
            assert response["id"] == "r7" and response["model_name"] == "digits", response
            assert response["model_version"] == version, response
            np.testing.assert_array_equal(result.as_numpy("output"), outputs)
            ways += 1
some = [client.async_infer("digits", input_of(images[i % 3:i % 3 + 1], True)) for i in range(64)]
for i, one in enumerate(some):
    np.testing.assert_allclose(one.get_result().as_numpy("output")[0], outputs[i % 3], rtol=1e-4, atol=1e-5)

refused("there is no model letters", lambda: client.infer("letters", input_of(images, True)))
refused("there is no version 99", lambda: client.infer("digits", input_of(images, True), model_version="99"))
refused("its input's shape is [3, 28, 28]", lambda: client.infer("digits", input_of(images[:, 0], True)))
refused("compressed", lambda: client.infer("digits", input_of(images, True), request_compression_algorithm="gzip"))
refused("no sequences", lambda: client.infer("digits", input_of(images, True), sequence_id=3))
refused("\"output\"", lambda: client.infer("digits", input_of(images, True),
                                           outputs=[triton.InferRequestedOutput("scores")]))
wide = triton.InferInput("input", images.shape, "FP64")
wide.set_data_from_numpy(images.astype(np.float64))
refused("datatype is \"FP64\"", lambda: client.infer("digits", [wide]))
print(f"tritonclient: {ways} ways to ask, {len(some)} requests at once, 7 refusals")
