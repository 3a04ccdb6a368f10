#!/usr/bin/env python3
"""Submitted jobs and the launcher, as users meet them: real processes, on this machine.

    bench_jobs.py BIN [--torchrun PYTHON] [--jobs N] [--json FILE]

BIN is a build's folder of programs (build/release/bin). Rows:
  submit to the first line    `troupe job submit -- sh -c 'echo first'`, from its start to that line, cluster warm
  run of nothing              `troupe run --nproc-per-node 1 --no-python true` less `true`; with --torchrun PYTHON the
                              same by torch.distributed.run of that Python
  jobs by ten clients         N jobs (default 1000) that each write their id, while the head is killed three times (kill -9)
                              and started again: none lost, none run twice, and jobs a second
  lines a second              a job that writes a million lines, until all are in the file of its node
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time


def seconds(command):
    begin = time.monotonic()
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ended.returncode != 0:
        raise SystemExit(f"bench_jobs: {' '.join(command)} ended with {ended.returncode}: {ended.stderr.strip()[-300:]}")
    return time.monotonic() - begin


class Cluster:
    """One head and its node, in a folder of its own."""

    def __init__(self, troupe):
        self.troupe = troupe
        self.folder = tempfile.mkdtemp(prefix="troupe-bench-")
        self.env = dict(os.environ, TROUPE_FOLDER=self.folder)
        self.head = None
        self.start()

    def start(self):
        log = open(os.path.join(self.folder, "bench.log"), "a")
        self.head = subprocess.Popen([self.troupe, "start", "--head", "--port", "0", "--cpus", "4"], env=self.env, stdout=log,
                                     stderr=log, start_new_session=True)
        for _ in range(300):
            if self.run("status").returncode == 0:
                return
            time.sleep(0.1)
        raise SystemExit(f"bench_jobs: no head within 30 s; see {self.folder}/bench.log")

    def run(self, *arguments):
        return subprocess.run([self.troupe, *arguments], env=self.env, capture_output=True, text=True)

    def head_pid(self):
        """The head's own process: a child of what starts it again when it dies."""
        tree = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(self.head.pid)], capture_output=True, text=True).stdout
        for line in tree.splitlines():
            pid, _, words = line.strip().partition(" ")
            if "head" in words:
                return int(pid)
        return None

    def stop(self):
        self.run("stop")
        try:
            self.head.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.head.pid, signal.SIGKILL)


def first_line(cluster):
    begin = time.monotonic()
    process = subprocess.Popen([cluster.troupe, "job", "submit", "--", "sh", "-c", "echo first"], env=cluster.env,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    took = None
    for line in process.stdout:
        if "first" in line and took is None:
            took = time.monotonic() - begin
    if process.wait() != 0 or took is None:
        raise SystemExit("bench_jobs: the job did not print its line")
    return took


def storm(cluster, jobs, kills):
    """`jobs` jobs by ten clients. Returns (seconds, lost, twice, kills that hit)."""
    done = os.path.join(cluster.folder, "done")
    os.mkdir(done)
    submitted, lock = [], threading.Lock()

    def client(number):
        for i in range(number, jobs, 10):
            name = f"storm-{i}"
            # One line an attempt: a job that ran twice has two.
            command = ["job", "submit", "--detach", "--id", name, "--", "sh", "-c", f"echo x >> {done}/{name}"]
            for _ in range(100):  # a head that is away is asked again, under the same id
                if cluster.run(*command).returncode == 0:
                    break
                time.sleep(0.2)
            with lock:
                submitted.append(name)

    begin = time.monotonic()
    clients = [threading.Thread(target=client, args=(number,)) for number in range(10)]
    for thread in clients:
        thread.start()
    hit = 0
    for kill in range(1, kills + 1):
        while len(submitted) < jobs * kill // (kills + 1) and any(thread.is_alive() for thread in clients):
            time.sleep(0.02)
        pid = cluster.head_pid()
        if pid:
            os.kill(pid, signal.SIGKILL)
            hit += 1
    for thread in clients:
        thread.join()
    while len(os.listdir(done)) < jobs and time.monotonic() - begin < 600:
        time.sleep(0.1)
    took = time.monotonic() - begin
    time.sleep(2)  # whatever runs twice does so now
    runs = {name: len(open(os.path.join(done, name)).readlines()) for name in os.listdir(done)}
    lost = jobs - len(runs)
    twice = sum(1 for count in runs.values() if count > 1)
    return took, lost, twice, hit


def lines(cluster):
    count = 1_000_000
    script = f"import sys; sys.stdout.write('a line of a job that says much\\n' * {count})"
    job = f"lines-{os.getpid()}"
    begin = time.monotonic()
    cluster.run("job", "submit", "--detach", "--id", job, "--", sys.executable, "-c", script)
    cluster.run("job", "wait", job)
    return count / (time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--torchrun", metavar="PYTHON", help="a Python that has torch: its torch.distributed.run is measured, too")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    troupe = os.path.abspath(os.path.join(arguments.bin, "troupe"))
    rows = []

    def row(case, ours, unit, peer=None, peer_name=None):
        rows.append({"bench": "jobs", "case": case, "ours": ours, "unit": unit})
        text = f"{case:34s} {ours:12.4g} {unit}"
        if peer is not None:
            rows[-1].update(peer=peer, peer_name=peer_name, ratio=peer / ours)
            text += f"   {peer_name} {peer:.4g} {unit}  {peer / ours:.1f}x"
        print(text, flush=True)

    bare = statistics.median(seconds(["true"]) for _ in range(arguments.rounds))
    ours = statistics.median(seconds([troupe, "run", "--nproc-per-node", "1", "--no-python", "true"])
                             for _ in range(arguments.rounds)) - bare
    peer = None
    if arguments.torchrun:
        peer = statistics.median(
            seconds([arguments.torchrun, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1", "--no_python",
                     "true"]) for _ in range(3)) - bare
    row("run of nothing", ours, "s", peer, "torchrun" if peer else None)

    cluster = Cluster(troupe)
    try:
        first_line(cluster)
        row("submit to the first line", statistics.median(first_line(cluster) for _ in range(arguments.rounds)), "s")
        row("lines a second to the file", lines(cluster), "1/s")
        took, lost, twice, hit = storm(cluster, arguments.jobs, 3)
        row(f"{arguments.jobs} jobs by 10 clients", arguments.jobs / took, "1/s")
        print(f"  head killed {hit} times: {lost} lost, {twice} run twice")
        rows[-1].update(lost=lost, twice=twice, kills=hit)
    finally:
        cluster.stop()
    if arguments.json:
        with open(arguments.json, "w") as out:
            out.writelines(json.dumps(one) + "\n" for one in rows)
    return 1 if lost or twice else 0


if __name__ == "__main__":
    sys.exit(main())
