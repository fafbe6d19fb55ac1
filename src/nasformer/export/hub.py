"""Upload of an export to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nasformer.errors import UserError


def hub_api(repo: str) -> Any:
    """The Hub's client; refuses, before anything long, a name that is none, or to go on without the package."""
    if repo.count("/") != 1 or not all(repo.split("/")):
        raise UserError(f"--push-to-hub is {repo!r}; give OWNER/NAME, such as me/my-model")
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise UserError("--push-to-hub needs the package huggingface_hub; install it: nasformer[hub]") from None
    return HfApi()


def push_to_hub(folder: Path, repo: str, api: Any) -> str:
    """Uploads the folder of an export as a model; its address. A repository that is not there yet is made."""
    try:
        address = api.create_repo(repo, repo_type="model", exist_ok=True)
        api.upload_folder(repo_id=repo, repo_type="model", folder_path=str(folder))
    except Exception as error:  # no login, no rights, no network, a full quota: the package raises dozens of kinds
        reason = (str(error) or type(error).__name__).splitlines()[0]
        advice = f"the export is in {folder}; log in with `hf auth login` and run the command again"
        raise UserError(f"the Hub did not take {repo} ({reason}); {advice}") from error
    return str(address)
