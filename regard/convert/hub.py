"""Models by their name on Hugging Face's hub."""

from pathlib import Path

from ..errors import Mistake

HUB = "hf:"
WANTED = ("*.json", "*.jinja", "*.spm", "model*.safetensors")  # what we read of a folder


def fetched(name: str) -> Path:
    """The folder of hf:OWNER/NAME, or the file of hf:OWNER/NAME/FILE.gguf: from the cache, or the network."""
    try:
        import huggingface_hub
    except ImportError:
        raise Mistake(f"{name}: needs the huggingface_hub package: pip install 'regard[hub]'") from None
    parts = name.removeprefix(HUB).split("/")
    repository, file = "/".join(parts[:2]), "/".join(parts[2:])
    if not all(parts) or ".." in parts or not (file == "" or file.endswith(".gguf")):
        raise Mistake(f"{name}: no name of a model; the form is hf:OWNER/NAME or hf:OWNER/NAME/FILE.gguf")
    try:
        wanted = [file] if file else list(WANTED)
        folder = Path(huggingface_hub.snapshot_download(repository, allow_patterns=wanted))
    except Exception as e:  # from the network, the hub or the package: all of them are about this name
        why = (str(e).strip().splitlines() or [type(e).__name__])[0]
        how = f"with a network, `hf download {repository}` keeps it; or give a folder"
        raise Mistake(f"{name}: not in the cache, and cannot be fetched ({why}); {how}") from None
    if file and not (folder / file).is_file():
        raise Mistake(f"{name}: {repository} has no {file}; look there for its name")
    return folder / file if file else folder
