"""The same calls on Ray, for bench_runtime --ray PYTHON. Prints one JSON object of rates (1/s)."""
import json
import statistics
import time

import ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)


@ray.remote(num_cpus=0)
class Echo:
    def add(self, n):
        return n + 1


def rate(count, work):
    begin = time.perf_counter()
    work()
    return count / (time.perf_counter() - begin)


echo = Echo.remote()
ray.get([echo.add.remote(i) for i in range(500)])
sync, many, made = [], [], []
for _ in range(5):
    sync.append(rate(1000, lambda: [ray.get(echo.add.remote(i)) for i in range(1000)]))
    many.append(rate(5000, lambda: ray.get([echo.add.remote(i) for i in range(5000)])))
for _ in range(3):
    made.append(rate(4, lambda: ray.get([Echo.remote().add.remote(1) for _ in range(4)])))
print(json.dumps({
    "actor call, synchronous": statistics.median(sync),
    "actor call, asynchronous": statistics.median(many),
    "actor creation, light": statistics.median(made),
}))
