#!/usr/bin/env python3
"""The dashboard of a cluster with many actors, in Chromium: the first paint, and what an open page costs the head.

    bench_dashboard.py BIN [--actors N] [--rounds R] [--seconds S] [--json FILE]

BIN is a build's folder of programs (build/release/bin). Rows, medians of R rounds:
  first paint               of the page, from its navigation (goal: below 1 s)
  all of it drawn           until the actors' first page is in the table
  a question to the head    p50 and p99 of find(), one after another for S seconds, with a page open and without one
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

BROWSER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/scheduler/cli/browser.py")
DRAWN = "document.querySelectorAll('#page tr').length > 50"
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("bin")
    words.add_argument("--actors", type=int, default=10_000)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--seconds", type=float, default=5)
    words.add_argument("--json")
    asked = words.parse_args()
    folder = tempfile.mkdtemp(prefix="troupe-bench-")
    env = dict(os.environ, TROUPE_FOLDER=folder, no_proxy="*", NO_PROXY="*")
    troupe = os.path.abspath(os.path.join(asked.bin, "troupe"))
    running = []

    def start(*command):
        process = subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        return process, process.stdout.readline().strip()

    def head_answers(program):
        program.stdin.write(f"{asked.seconds}\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())

    def look(url, *expressions, wait=DRAWN, timeout=60):
        command = [sys.executable, BROWSER, url, "--wait", wait, "--timeout", str(timeout), *expressions]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    try:
        subprocess.run([troupe, "start", "--head", "--port", "0", "--cpus", "2", "--detach"], env=env, check=True,
                       stdout=subprocess.DEVNULL)
        with open(os.path.join(folder, "address")) as file:
            address = file.read().strip()
        program, said = start(os.path.abspath(os.path.join(asked.bin, "many_actors")), address, str(asked.actors))
        if not said:
            raise SystemExit("bench_dashboard: the actors did not start")
        paint, drawn, alone, watched = [], [], [], []
        for _ in range(asked.rounds):
            dashboard, url = start(troupe, "dashboard", "--port", "0")  # anew: nothing is kept from the page before
            alone.append(head_answers(program))
            page = look(url, FIRST_PAINT, "performance.now()")
            said = page.communicate()[0].split()
            if len(said) != 2:
                raise SystemExit("bench_dashboard: the page was not drawn")
            paint.append(float(said[0]))
            drawn.append(float(said[1]))
            page = look(url, wait="false", timeout=asked.seconds + 5)  # open, and live
            time.sleep(3)
            watched.append(head_answers(program))
            page.wait()
            dashboard.terminate()
            dashboard.wait()
    finally:
        for process in running:
            process.kill()
        subprocess.run([troupe, "stop"], env=env, stdout=subprocess.DEVNULL)
    of = lambda rows, key: statistics.median(row[key] for row in rows)
    rows = [("first paint", statistics.median(paint), 1000, "the goal", "ms"),
            ("all of it drawn", statistics.median(drawn), None, None, "ms"),
            ("a question to the head, a page open: p50", of(watched, "p50_us"), of(alone, "p50_us"), "without", "us"),
            ("a question to the head, a page open: p99", of(watched, "p99_us"), of(alone, "p99_us"), "without", "us")]
    for name, ours, peer, peer_name, unit in rows:
        print(f"{name:44} {ours:10.0f} {unit:4} {'' if peer is None else f'{peer:10.0f} {peer_name}'}")
    if asked.json:
        with open(asked.json, "w") as out:
            for name, ours, peer, peer_name, unit in rows:
                out.write(json.dumps({"bench": "dashboard", "case": name, "ours": ours, "peer": peer, "peer_name": peer_name,
                                      "ratio": peer / ours if peer else None, "unit": unit}) + "\n")


if __name__ == "__main__":
    main()
