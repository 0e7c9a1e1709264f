"""Getting a model's config: a directory, a folder of configs, the built-in list, or Hugging Face. This room's only I/O."""

import contextlib
import csv
import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from longspan.errors import InputError, ModelFetchError
from longspan.model.facts import ModelFacts
from longspan.model.parse import parse_config, parse_text

_HUB_SECONDS = 10.0
# More than any config.json has.
_LARGEST_BYTES = 64_000_000


def load_model(name: str, configs: Path | None = None, offline: bool = False) -> ModelFacts:
    """Finds a model by what the user calls it.

    Args:
        name: a directory with a config.json, a config file, or a Hugging Face id.
        configs: a folder with an index.csv of ids and files, asked before anything else is.
        offline: never ask Hugging Face.

    Raises:
        ModelFetchError: found nowhere. ModelError: found, but a field is missing or contradicts another.
    """
    try:
        found = _load_here(name, configs)
    except (
        OSError,
        RuntimeError,
    ) as error:  # a name longer than a path may be, no permission, no such "~user"
        raise ModelFetchError(
            f"{name[:60]!r} cannot be looked for: {getattr(error, 'strerror', None) or error}.",
            "Give a directory with a config.json, or a Hugging Face id (org/name).",
        ) from error
    if found is not None:
        return found
    if offline:
        raise ModelFetchError(
            f"{name} is not a directory here, not in the built-in list, and looking it up is switched off.",
            f"Give a directory with its config.json, or one of: {', '.join(builtin_names())}.",
        )
    return load_hub(name)


def _load_here(name: str, configs: Path | None) -> ModelFacts | None:
    """What needs no network: a path, the folder of configs, the built-in list."""
    path = Path(name).expanduser()
    if path.is_dir():
        return load_directory(path)
    if path.is_file() and path.suffix == ".json":
        return parse_text(_text(path), path.stem)
    if configs is not None:
        found = load_indexed(name, configs)
        if found is not None:
            return found
    return load_builtin(name)


def _text(path: Path) -> str:
    """A file's text.

    Raises:
        ModelFetchError: it may not be read, is too large for a config, or is not text.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ModelFetchError(
                f"{path} has {path.stat().st_size / 1e6:,.0f} MB, and a config has a few kB.",
                "Give the directory that holds config.json.",
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelFetchError(
            f"{path} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    except UnicodeDecodeError as error:
        raise ModelFetchError(
            f"{path} is not text (UTF-8).", "Download it again; it may be damaged."
        ) from error


def load_directory(path: Path) -> ModelFacts:
    """Reads the model in a local directory (config.json, and hf_quant_config.json where there is one).

    The exact bytes of its safetensors files come with it, if they are there.

    Raises:
        ModelFetchError: no config.json there. ModelError: it cannot be read.
    """
    config, quant = path / "config.json", path / "hf_quant_config.json"
    if not config.is_file():
        raise ModelFetchError(
            f"{path} has no config.json, so it is not a model directory.",
            "Give the directory that holds config.json and the *.safetensors files.",
        )
    facts = parse_text(_text(config), path.resolve().name, _text(quant) if quant.is_file() else None)
    weights = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return replace(facts, weight_file_bytes=weights, weight_file_source=str(path)) if weights else facts


def load_indexed(name: str, configs: Path) -> ModelFacts | None:
    """A model from a folder of configs: `index.csv` maps `repo_id` to `file`; `expanded/` is preferred where it has the file.

    Ids that the index lacks are looked up in `labels.csv` (`label` to `repo_id`), and as `org__name.json`.

    Raises:
        InputError: the folder has no index.csv.
    """
    index = configs / "index.csv"
    if not index.is_file():
        raise InputError(f"{configs} has no index.csv.", "It must have the columns repo_id and file.")
    rows = {row["repo_id"]: row for row in _table(index, "repo_id", "file")}
    row = rows.get(name) or rows.get(_labels(configs).get(name, ""))
    file = row["file"] if row else f"{name.replace('/', '__')}.json"
    path = configs / "expanded" / file
    path = path if path.is_file() else configs / file
    if not path.is_file():
        return None
    quant = configs / f"{file.removesuffix('.json')}.hf_quant_config.json"
    facts = parse_text(_text(path), name, _text(quant) if quant.is_file() else None)
    size = (row or {}).get("safetensors_bytes") or ""
    return (
        replace(facts, weight_file_bytes=int(size), weight_file_source=str(index))
        if size.isdigit()
        else facts
    )


def _labels(configs: Path) -> dict[str, str]:
    path = configs / "labels.csv"
    if not path.is_file():
        return {}
    return {row["label"]: row["repo_id"] for row in _table(path, "label", "repo_id") if row["repo_id"]}


def _table(path: Path, *columns: str) -> list[dict[str, str]]:
    """The rows of a CSV file that must have these columns; rows that are cut off are left out.

    Raises:
        InputError: a column is missing, or it is no CSV.
    """
    try:
        reader = csv.DictReader(_text(path).splitlines())
        rows = list(reader)
    except csv.Error as error:
        raise InputError(
            f"{path} is no CSV file: {error}.", f"Give it the columns {', '.join(columns)}."
        ) from error
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(
            f"{path} lacks the columns {', '.join(missing)}.", "They say which file is which model's."
        )
    return [row for row in rows if all(row[name] is not None for name in columns)]


def _builtin() -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = json.loads(
        files("longspan.model").joinpath("known.json").read_text("utf-8")
    )
    return document


def builtin_names() -> tuple[str, ...]:
    """The ids that can be planned without a network."""
    return tuple(_builtin())


def builtin_source(name: str) -> str:
    """Where the built-in dimensions of `name` come from."""
    return str(_builtin()[name]["source"])


def builtin_config(name: str) -> dict[str, Any] | None:
    """The config.json of a model of the built-in list, whatever the case of its id, or None."""
    found = {known.lower(): entry["config"] for known, entry in _builtin().items()}
    return found.get(name.lower())


def load_builtin(name: str) -> ModelFacts | None:
    """A model of the built-in list by its Hugging Face id, whatever its case, or None."""
    wanted = name.lower()
    for known, entry in _builtin().items():
        if known.lower() == wanted:
            return parse_config(entry["config"], known)
    return None


def resolve_commit(name: str, revision: str | None = None) -> str | None:
    """The commit that a revision of a Hugging Face id is now, so that all nodes read the same; None where nobody knows it.

    Hugging Face is asked; without a network, the local hub cache, which keeps the commit of each revision it has seen.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.file_download import repo_folder_name

    if revision and re.fullmatch("[0-9a-f]{40}", revision):
        return revision
    with contextlib.suppress(Exception):  # offline, gated, unknown: `load_hub` says which
        return HfApi().model_info(name, revision=revision, timeout=_HUB_SECONDS).sha
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    with contextlib.suppress(OSError):
        return (folder / "refs" / (revision or "main")).read_text().strip() or None
    return None


def load_hub(name: str, revision: str | None = None) -> ModelFacts:
    """Reads config.json from Hugging Face, and the exact byte count of the weights from the safetensors headers.

    Args:
        revision: a branch, tag or commit; by default the main branch.

    Raises:
        ModelFetchError: no such model, no access to it, or no network.
    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def text(file: str) -> str:
        return Path(hf_hub_download(name, file, revision=revision, etag_timeout=_HUB_SECONDS)).read_text()

    try:
        config = text("config.json")
    except GatedRepoError as error:
        raise ModelFetchError(
            f"{name} is gated on Hugging Face: its licence must be accepted before config.json can be read.",
            "Accept it on the model's page and set HF_TOKEN, or give a directory that holds the model.",
        ) from error
    except RevisionNotFoundError as error:
        raise ModelFetchError(
            f"{name} has no revision {revision!r} on Hugging Face.",
            "Its page lists branches, tags and commits under Files and versions.",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelFetchError(
            f"Hugging Face has no model {name!r}, or it is private.",
            "Check the spelling (org/name), set HF_TOKEN for a private one, or give a directory.",
        ) from error
    except Exception as error:
        raise ModelFetchError(
            f"config.json of {name!r} could not be fetched: {type(error).__name__}: {error}",
            f"Without a network, give a directory, or one of the built-in models: {', '.join(builtin_names())}.",
        ) from error
    try:
        quant = text("hf_quant_config.json")
    except (HfHubHTTPError, OSError):
        quant = None
    facts = parse_text(config, name, quant)
    try:
        headers = HfApi().get_safetensors_metadata(name, revision=revision)
    except Exception:  # noqa: BLE001  the byte count is a bonus; a model without safetensors has none
        return facts
    size = sum(
        tensor.data_offsets[1] - tensor.data_offsets[0]
        for file in headers.files_metadata.values()
        for tensor in file.tensors.values()
    )
    return replace(facts, weight_file_bytes=size, weight_file_source=f"https://huggingface.co/{name}")
