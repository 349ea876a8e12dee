"""python -m tencache …: the `tencache` command, with the PyTorch of this Python."""

from ._program import main

main()
