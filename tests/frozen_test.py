"""What `tencache` prints with --json and the files that it writes, held against those of tests/frozen.

TENCACHE_UPDATE_FROZEN=1 writes them anew. commands.txt has the commands; each that offers --json runs with and without
it, for the same exit code. What takes the tool's own time (`timing`), hashes the build (`key`, `combinations_sha256`),
repeats what was asked (`manifest`) or is prose (`help`) is left out. Outputs of more than 64 KiB are frozen as their
SHA-256.
"""
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FROZEN = os.path.join(ROOT, "tests", "frozen")
PROGRAM = os.path.abspath(os.environ.get("TENCACHE", os.path.join(ROOT, "build/release/cli/tencache")))
UPDATE = bool(os.environ.get("TENCACHE_UPDATE_FROZEN"))
WHOLE = 64 * 1024  # bytes: what is longer is kept as a hash
LEFT_OUT = ("timing", "key", "combinations_sha256", "manifest", "help")


def commands():
    with open(os.path.join(FROZEN, "commands.txt"), encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, rest = line.split(": ", 1)
            words, _, files = rest.partition(" > ")
            yield name, shlex.split(words), files.split()


def what_is_kept(value):
    if isinstance(value, dict):
        return {key: what_is_kept(item) for key, item in value.items()
                if key not in LEFT_OUT and not (key == "combinations" and len(str(item)) == 64)}  # a hash, not a number
    if isinstance(value, list):
        return [what_is_kept(item) for item in value]
    return value


def lines_of(value, indent=0, before=0):
    """JSON in which what fits into a line, `before` a key of that length, is one."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + before + len(line) <= 119 or not isinstance(value, (dict, list)):
        return line
    margin = "\n" + " " * (indent + 1)
    if isinstance(value, list):
        return "[" + margin + ("," + margin).join(lines_of(item, indent + 1) for item in value) + margin[:-1] + "]"
    keys = {json.dumps(key) + ": ": item for key, item in value.items()}
    lines = [key + lines_of(item, indent + 1, len(key)) for key, item in keys.items()]
    return "{" + margin + ("," + margin).join(lines) + margin[:-1] + "}"


def steady(text):
    """Without what differs from build to build and run to run: hashes of the build, times taken, this computer's folders."""
    text = re.sub(r"\b([0-9]+\.[0-9]+\.[0-9]+)\+[0-9a-f]+", r"\1+<build>", text)
    text = re.sub(r"\bin [0-9.]+ (s|ms|min)\b", "in <time>", text)
    return text.replace(ROOT, "<source>")


def short(content):
    if len(content) <= WHOLE:
        return content
    return f"sha256 {hashlib.sha256(content.encode()).hexdigest()} of {len(content)} characters\n"


class Frozen(unittest.TestCase):
    maxDiff = 4000

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.folder = holder.name
        samples, data = os.path.join(ROOT, "traces", "samples"), os.path.join(ROOT, "tests", "data")
        for source in (os.path.join(FROZEN, "input"), samples, data):
            for name in os.listdir(source):
                shutil.copy(os.path.join(source, name), cls.folder)

    def run_words(self, words):
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "TERM")}
        return subprocess.run([PROGRAM, *words], cwd=self.folder, env=environment, capture_output=True, text=True,
                              encoding="utf-8")

    def hold(self, path, content):
        path = os.path.join(FROZEN, path)
        content = short(content)
        if UPDATE:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
            return
        self.assertTrue(os.path.exists(path), f"{path} is missing; TENCACHE_UPDATE_FROZEN=1 writes it")
        with open(path, encoding="utf-8") as file:
            self.assertEqual(content, file.read(), f"{path} differs; TENCACHE_UPDATE_FROZEN=1 updates it")

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8", newline="") as file:
            content = steady(file.read())
        if content.startswith("key,"):  # rows of a sweep: the first column hashes the build
            content = re.sub(r"^[^,\n]*,", "", content, flags=re.MULTILINE)
        return content

    def has_json(self, words):
        command = [word for word in words[:2] if re.fullmatch(r"[a-z][a-z-]*", word)]
        if command[:1] != ["import"]:
            command = command[:1]
        help_text = self.run_words([*command, "--help"]).stdout if command else ""
        return "--help" not in words and re.search(r"^ +--json\b", help_text, re.MULTILINE) is not None

    def test_everything_is_as_it_was(self):
        seen = set()
        for name, words, files in commands():
            with self.subTest(name):
                self.assertNotIn(name, seen)
                seen.add(name)
                text = self.run_words(words)
                for file in files:
                    self.hold(f"files/{name}.{file}", self.read(file))
                if not self.has_json(words):
                    continue
                for file in files:
                    os.remove(os.path.join(self.folder, file))
                answer = self.run_words([*words, "--json"])
                self.assertEqual(answer.returncode, text.returncode)
                if not answer.stdout:
                    continue
                document = what_is_kept(json.loads(answer.stdout))
                self.hold(f"json/{name}.json", steady(lines_of(document)) + "\n")
                with open(os.path.join(self.folder, f"{name}.json"), "w", encoding="utf-8") as file:
                    file.write(answer.stdout)  # later commands read it
        if not UPDATE:
            held = os.listdir(os.path.join(FROZEN, "json")) + os.listdir(os.path.join(FROZEN, "files"))
            self.assertEqual({file.split(".")[0] for file in held}, seen)


if __name__ == "__main__":
    if not os.path.exists(PROGRAM):
        sys.exit(f"{PROGRAM} is not there; set TENCACHE")
    unittest.main()
