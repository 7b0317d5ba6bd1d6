"""Models by name on the Hugging Face Hub."""

from pathlib import Path

from regard.errors import UserError

HUB = "hf:"
PATTERNS = ("*.json", "*.jinja", "*.spm", "model*.safetensors")  # the files that are read; no pickles


def download(name: str) -> Path:
    """The folder of hf:OWNER/NAME, or the file of hf:OWNER/NAME/FILE.gguf: from the cache, or the network."""
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(f"{name}: needs the huggingface_hub package: pip install 'regard[hub]'") from None
    parts = name.removeprefix(HUB).split("/")
    repository, file = "/".join(parts[:2]), "/".join(parts[2:])
    if not all(parts) or ".." in parts or not (file == "" or file.endswith(".gguf")):
        raise UserError(f"{name}: not a model's name; give hf:OWNER/NAME or hf:OWNER/NAME/FILE.gguf")
    try:
        patterns = [file] if file else list(PATTERNS)
        folder = Path(huggingface_hub.snapshot_download(repository, allow_patterns=patterns))
    except Exception as e:  # from the network, the hub or the package: all of them are about this name
        why = (str(e).strip().splitlines() or [type(e).__name__])[0]
        how = f"with a network, run `hf download {repository}`; or give a folder"
        raise UserError(f"{name}: not in the cache, and cannot be downloaded ({why}); {how}") from None
    if file and not (folder / file).is_file():
        raise UserError(f"{name}: {repository} has no {file}; look up its files on the hub")
    return folder / file if file else folder
