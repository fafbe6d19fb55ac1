"""Models that leave the house."""

from nasformer.export.model_folder import load_model, save_model

__all__ = ["load_model", "save_model"]
