"""browser.py URL [--width N] [--height N] [--dark] [--wait EXPRESSION]... [--timeout S] EXPRESSION...
Opens the page in Chromium without a window, waits until one expression of --wait after another is true (each is said on
stderr), and prints what each JavaScript EXPRESSION gives, as JSON, a line each. Speaks the DevTools protocol over a pipe: nothing to install."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time


class Browser:
    def __init__(self, program, folder):
        to_browser, self.out = os.pipe()
        self.back, from_browser = os.pipe()

        def as_3_and_4():  # neither may be one of the two that it replaces
            a, b = os.dup(to_browser), os.dup(from_browser)
            while min(a, b) < 5:
                a, b = os.dup(a), os.dup(b)
            os.dup2(a, 3)
            os.dup2(b, 4)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-proxy-server", "--no-first-run",
                 "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen(words, preexec_fn=as_3_and_4, close_fds=False, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number = 0
        self.rest = b""
        self.session = None

    def ask(self, method, **words):
        self.number += 1
        message = {"id": self.number, "method": method, "params": words}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                more = os.read(self.back, 1 << 16)
                if not more:
                    sys.exit("the browser has ended")
                self.rest += more
            text, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") != self.number:
                continue
            if "error" in answer:
                sys.exit(f"{method}: {answer['error']}")
            return answer["result"]

    def open_page(self):
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def value(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            sys.exit(f"{expression}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("url")
    words.add_argument("--width", type=int, default=1280)
    words.add_argument("--height", type=int, default=900)
    words.add_argument("--dark", action="store_true")
    words.add_argument("--wait", action="append")
    words.add_argument("--timeout", type=float, default=60)
    words.add_argument("expressions", nargs="*")
    asked = words.parse_intermixed_args()
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    program = next((one for one in found if one), None) or sys.exit("there is no Chromium")
    folder = tempfile.mkdtemp()
    browser = Browser(program, folder)
    try:
        browser.open_page()
        browser.ask("Emulation.setDeviceMetricsOverride", width=asked.width, height=asked.height,
                    deviceScaleFactor=1, mobile=asked.width < 800)
        browser.ask("Emulation.setEmulatedMedia",
                    features=[{"name": "prefers-color-scheme", "value": "dark" if asked.dark else "light"}])
        browser.ask("Page.navigate", url=asked.url)
        latest = time.monotonic() + asked.timeout
        for wait in asked.wait or ["document.readyState === 'complete'"]:
            condition = f"(() => {{ try {{ return !!({wait}); }} catch {{ return false; }} }})()"
            while not browser.value(condition):
                if time.monotonic() > latest:
                    sys.exit(f"not within {asked.timeout} s: {wait}")
                time.sleep(0.02)
            print("true:", wait, file=sys.stderr, flush=True)
        for expression in asked.expressions:
            print(json.dumps(browser.value(expression)), flush=True)
    finally:
        browser.process.kill()
        browser.process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
