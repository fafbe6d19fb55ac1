"""Nets with the weights that timm publishes on the Hugging Face hub: from its cache, or downloaded.

The hub's client retries for a minute before it gives up, so whether the hub answers at all is found out before.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from torch import nn

from nasformer.errors import UserError, one_line

PATIENCE = 3.0
"""Seconds for which a hub that cannot be reached is asked again: a network may be just coming up."""


def published_model(name: str, **options: Any) -> nn.Module:
    """The model of timm with its published weights; UserError without network, unless they are in the hub's cache."""
    import timm  # late: it takes longer to import than torch

    config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if config is not None and config.hf_hub_id:
        check_hub(name, config.hf_hub_id.partition("@")[0])
    return timm.create_model(name, pretrained=True, **options)


def check_hub(name: str, repo: str) -> None:
    """Refuses weights that are neither in the cache nor to be had, as the hub cannot be reached."""
    from huggingface_hub import constants, hf_hub_url

    if constants.HF_HUB_OFFLINE or is_cached(repo):
        return
    if reason := unreachable(hf_hub_url(repo, "model.safetensors")):
        raise UserError(
            f"cannot reach {constants.ENDPOINT} for the weights of timm's {name} ({reason}); where there is a network, "
            f"download model.safetensors from {constants.ENDPOINT}/{repo}, and name the file: "
            f"timm:{name}:model.safetensors"
        )


def is_cached(repo: str) -> bool:
    """Whether the hub's cache has any file of a repository; its client then needs no network."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / "--".join(["models", *repo.split("/")])
    return any(folder.glob("snapshots/*/*"))


def unreachable(address: str) -> str:
    """Why nothing at all answers at an address; empty where anything does. Waits as long as the hub's client does."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    started = time.monotonic()
    while True:
        try:
            get_session().head(address, timeout=constants.HF_HUB_ETAG_TIMEOUT)
            return ""
        except Exception as error:  # the client's library, and with it its exceptions, differs between versions
            if time.monotonic() - started > PATIENCE:
                return one_line(error, 200)
        time.sleep(1)
