"""Models that leave the house."""

from nasformer.export.bundle import Exported, export_model
from nasformer.export.model_folder import load_model, save_model

__all__ = ["Exported", "export_model", "load_model", "save_model"]
