"""The same calls on Ray, for bench_runtime --ray PYTHON. Prints one JSON object of rates (1/s)."""
import json
import statistics
import time

import numpy
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


@ray.remote
def increment(n):
    return n + 1


@ray.remote
def length(values):
    return len(values)


echo = Echo.remote()
ray.get([echo.add.remote(i) for i in range(500)])
sync, many, made = [], [], []
for _ in range(5):
    sync.append(rate(1000, lambda: [ray.get(echo.add.remote(i)) for i in range(1000)]))
    many.append(rate(5000, lambda: ray.get([echo.add.remote(i) for i in range(5000)])))
for _ in range(3):
    made.append(rate(4, lambda: ray.get([Echo.remote().add.remote(1) for _ in range(4)])))

ray.get([increment.remote(i) for i in range(500)])
task_sync, task_many = [], []
for _ in range(5):
    task_sync.append(rate(500, lambda: [ray.get(increment.remote(i)) for i in range(500)]))
    task_many.append(rate(3000, lambda: ray.get([increment.remote(i) for i in range(3000)])))


def objects(count, times):
    """put, view and a task's read of `times` objects of `count` floats: rates."""
    values, refs = numpy.ones(count, numpy.float32), []
    put = rate(times, lambda: refs.extend(ray.put(values) for _ in range(times)))
    view = rate(times, lambda: [ray.get(one) for one in refs])
    return put, view, rate(times, lambda: ray.get([length.remote(one) for one in refs]))


small = [objects(25, 500) for _ in range(5)]
large = [objects(25 << 20, 4) for _ in range(5)]
middle = lambda rows, column: statistics.median(row[column] for row in rows)
print(json.dumps({
    "task, synchronous": statistics.median(task_sync),
    "task, asynchronous": statistics.median(task_many),
    "put, 100 B": middle(small, 0),
    "view, 100 B": middle(small, 1),
    "object read by a task, 100 B": middle(small, 2),
    "put, 100 MiB": middle(large, 0),
    "view, 100 MiB": middle(large, 1),
    "object read by a task, 100 MiB": middle(large, 2),
    "actor call, synchronous": statistics.median(sync),
    "actor call, asynchronous": statistics.median(many),
    "actor creation, light": statistics.median(made),
}))
