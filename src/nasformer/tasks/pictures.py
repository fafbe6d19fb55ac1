"""Pictures of masks: laid over their image, and the truth beside the answer."""

from __future__ import annotations

import numpy as np
from PIL import Image
from torch import Tensor
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

from nasformer.tasks.masks import IGNORED

OPACITY = 0.6
GAP = 4  # pixels between panels
MOST_COLOURS = 254


def palette() -> np.ndarray:
    """A colour for each class, as Pascal VOC has them: neighbours in number are far apart; ignored pixels are white.

    >>> palette()[:3].tolist()
    [[0, 0, 0], [128, 0, 0], [0, 128, 0]]
    """
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= ((np.arange(256) >> (3 * bit + channel)) & 1).astype(np.uint8) << (7 - bit)
    colours[IGNORED] = 255
    return colours


def overlay(image: Tensor, mask: Tensor) -> Image.Image:
    """A mask in colours, through which the image (uint8, 1 or 3 channels) can be seen."""
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy().astype(np.float32)
    mixed = OPACITY * palette()[mask.cpu().numpy()] + (1 - OPACITY) * pixels
    return Image.fromarray(mixed.round().astype(np.uint8))


def beside(image: Tensor, truth: Tensor, answer: Tensor) -> Image.Image:
    """The image, the true mask and the answered one, from left to right."""
    return side_by_side(plain(image), overlay(image, truth), overlay(image, answer))


def side_by_side(*panels: Image.Image) -> Image.Image:
    """Pictures of one size from left to right."""
    columns, rows = panels[0].size
    picture = Image.new("RGB", (len(panels) * (columns + GAP) - GAP, rows), "white")
    for number, panel in enumerate(panels):
        picture.paste(panel, (number * (columns + GAP), 0))
    return picture


def plain(image: Tensor) -> Image.Image:
    """An image (uint8, 1 or 3 channels) as it is."""
    return Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy())


def draw_objects(image: Tensor, boxes: Tensor, masks: Tensor | None, labels: Tensor, words: list[str]) -> Image.Image:
    """Boxes with words, and masks, over an image (uint8, 1 or 3 channels), in the colours of their classes (from 1)."""
    picture = image.expand(3, -1, -1).contiguous().cpu()
    colours = [tuple(palette()[1 + label % MOST_COLOURS].tolist()) for label in labels.tolist()]
    if masks is not None and len(masks):
        picture = draw_segmentation_masks(picture, masks.bool().cpu(), alpha=OPACITY, colors=colours)
    if len(boxes):
        named = {"label_colors": "white", "label_background_colors": colours, "fill_labels": True}
        picture = draw_bounding_boxes(picture, boxes.cpu(), words, colours, width=2, **named)
    return plain(picture)


def indexed(mask: Tensor) -> Image.Image:
    """A mask as a PNG with a palette, whose pixels are classes."""
    picture = Image.fromarray(mask.cpu().numpy().astype(np.uint8), mode="P")
    picture.putpalette(palette().flatten().tolist())
    return picture
