#!/usr/bin/env python3
"""attached_job.py TROUPE: Ctrl-C on a terminal that `troupe job submit` follows a job on asks whether to stop the job or to detach."""
import os
import pty
import select
import subprocess
import sys
import tempfile
import time

troupe = sys.argv[1]
folder = tempfile.TemporaryDirectory()
os.environ["TROUPE_FOLDER"] = os.path.join(folder.name, "state")


def run(*words):
    return subprocess.run([troupe, *words], capture_output=True, text=True)


def fail(why):
    sys.exit(why)


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words):
        self.said = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(troupe, [troupe, *words])

    def read(self, seconds):
        """False: it has ended."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            more = os.read(self.fd, 4096).decode()
        except OSError:
            return False
        self.said += more
        return more != ""

    def wait_for(self, text):
        end = time.monotonic() + 60
        while text not in self.said:
            if time.monotonic() > end or not self.read(1):
                fail(f"not {text!r} in {self.said!r}")

    def type(self, text):
        os.write(self.fd, text.encode())

    def exit_code(self):
        while self.read(60):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def follow(job):
    terminal = Terminal("job", "submit", "--id", job, "--", "sh", "-c", "echo it runs; exec sleep 600")
    terminal.wait_for("it runs")
    terminal.type("\x03")
    terminal.wait_for(f"stop job {job}, or detach and let it run? [s/d] ")
    return terminal


def check(is_good, why):
    if not is_good:
        fail(why)


started = run("start", "--head", "--port", "0", "--cpus", "2", "--gpus", "0", "--detach")
check(started.returncode == 0, started.stderr)
try:
    stopped = follow("stopped")
    stopped.type("s\n")
    code = stopped.exit_code()
    check(code == 143 and "job stopped STOPPED" in stopped.said, f"stop: exit code {code}: {stopped.said}")
    detached = follow("detached")
    detached.type("d\n")
    code = detached.exit_code()
    check(code == 130 and "job detached goes on" in detached.said, f"detach: exit code {code}: {detached.said}")
    check("RUNNING" in run("job", "status", "detached").stdout, run("job", "status", "detached").stdout)
    run("job", "stop", "detached")
finally:
    run("stop")
print("both answers do what they say")
