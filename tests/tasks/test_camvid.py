"""CamVid as it lies in ../shared/data, which is not part of the repository: real images, names and palettes."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from nasformer.data.files import BadImages
from nasformer.data.options import AugmentOptions
from nasformer.tasks.masks import open_masks
from nasformer.tasks.options import SegmentOptions
from nasformer.tasks.segment import MaskBatches

CAMVID = Path(__file__).parents[2] / ".." / "shared" / "data" / "camvid_240.tar"


@pytest.mark.slow
def test_camvid_is_read_with_its_splits_and_classes(tmp_path: Path) -> None:
    if not CAMVID.is_file():
        pytest.skip("needs ../shared/data/camvid_240.tar")
    with tarfile.open(CAMVID) as archive:
        archive.extractall(tmp_path, filter="data")
    options, bad = SegmentOptions(ignore="11,255"), BadImages(quiet=True)
    data = open_masks(tmp_path / "camvid_240", options, bad, holdout=0.1, seed=0)
    assert [len(part) for part in data.splits.parts()] == [367, 101, 233]
    assert bad.reasons == {}
    assert (len(data.labels.classes), data.labels.classes[0], data.labels.classes[-1]) == (11, "Sky", "Bicyclist")
    x, masks = next(MaskBatches(data, AugmentOptions(), 4, img_size=128, options=options, workers=1).train_batches())
    assert x.shape == (4, 3, 128, 128)
    assert set(masks.unique().tolist()) <= {*range(11), 255}
