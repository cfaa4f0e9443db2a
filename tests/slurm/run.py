"""Start the host's own small Slurm, run the tests on its two nodes at once, end every daemon: `make test-slurm`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.slurm.daemons import FOLDER_VARIABLE, LANES, LocalSlurm, missing_programs

TESTS_S = 570


def main() -> int:
    missing = missing_programs()
    if missing:
        print(f"not installed: {', '.join(missing)}; on Debian: apt-get install slurm-wlm munge", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="hut-") as name:
        slurm = LocalSlurm(Path(name))
        signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(143))
        try:
            slurm.start()
            command = [
                sys.executable, "-m", "pytest", "tests/slurm", "-m", "slurm", "-n", str(len(LANES)), "--dist", "load",
                "--tb=short", "--durations=12", *sys.argv[1:],
            ]  # fmt: skip
            environment = {**os.environ, FOLDER_VARIABLE: name}
            return subprocess.run(command, env=environment, timeout=TESTS_S, check=False).returncode
        except subprocess.TimeoutExpired:
            print(f"the tests took longer than {TESTS_S} s", file=sys.stderr)
            return 124
        finally:
            slurm.stop()


if __name__ == "__main__":
    sys.exit(main())
