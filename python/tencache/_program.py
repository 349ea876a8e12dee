"""The `tencache` command of the wheel: the program that is installed in this package."""

import os
import pathlib
import sys


def main() -> None:
    if sys.argv[1:3] == ["run", "python"]:  # it is the program of this Python that is to run
        from ._launch import main as run_python
        return run_python(sys.argv[3:])
    if sys.argv[1:3] == ["import", "snapshot"]:
        from ._snapshot import main as import_snapshot
        return import_snapshot(sys.argv[3:])
    program = pathlib.Path(__file__).parent / "bin" / "tencache"
    if not program.is_file():
        sys.exit(f"tencache: {program} is missing; this package was not installed from a wheel")
    os.execv(program, ["tencache", *sys.argv[1:]])


if __name__ == "__main__":
    main()
