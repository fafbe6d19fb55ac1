"""Counts parameters and MACs of well-known timm models, for the list of rivals that reports show.

python benchmarks/timm_table.py src/nasformer/runs/timm_table.json

Nothing is downloaded or computed: models are built on the meta device. MACs are half of what torch's counter of
operations sees, at 224 px and 1000 classes; `per_class` is what one more class adds in parameters.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import timm

from nasformer.runs.baselines import build_timm, count

NAMES = """
vit_tiny_patch16_224 vit_small_patch32_224 vit_small_patch16_224 vit_medium_patch16_gap_240 vit_base_patch32_224
vit_base_patch16_224 deit_tiny_patch16_224 deit_small_patch16_224 deit3_small_patch16_224 deit3_medium_patch16_224
deit_base_patch16_224 pit_ti_224 pit_xs_224 pit_s_224 swin_tiny_patch4_window7_224 swin_small_patch4_window7_224
swinv2_cr_tiny_ns_224 pvt_v2_b0 pvt_v2_b1 pvt_v2_b2 poolformer_s12 poolformer_s24 levit_128s levit_192 levit_256
mobilevit_xxs mobilevit_xs mobilevit_s mobilevitv2_050 mobilevitv2_100 edgenext_xx_small edgenext_x_small
edgenext_small efficientformer_l1 efficientformerv2_s0 efficientformerv2_s1 fastvit_t8 fastvit_t12 fastvit_sa12
efficientvit_b0 efficientvit_b1 repvit_m0_9 repvit_m1 tiny_vit_5m_224 tiny_vit_11m_224 tiny_vit_21m_224 coat_tiny
coat_lite_tiny coatnet_0_rw_224 maxvit_tiny_tf_224 xcit_nano_12_p16_224 xcit_tiny_12_p16_224 convnext_atto
convnext_femto convnext_pico convnext_nano convnext_tiny convnextv2_atto convnextv2_tiny resnet18 resnet26 resnet34
resnet50 resnet101 regnety_002 regnety_004 regnety_008 regnety_016 regnety_040 mobilenetv2_100 mobilenetv3_small_100
mobilenetv3_large_100 mobilenetv4_conv_small ghostnet_100 efficientnet_b0 efficientnet_b1 efficientnet_b2
tf_efficientnetv2_b0 tf_efficientnetv2_s densenet121
"""


def main() -> None:
    rows = {}
    for name in NAMES.split():
        ours, fewer = (count(build_timm(name, 224, 3, classes, "meta"), 224, 3) for classes in (1000, 10))
        per_class = (ours["params"] - fewer["params"]) // 990
        rows[name] = {"params": ours["params"], "macs": ours["macs"], "per_class": per_class}
        print(name, rows[name], flush=True)
    models = dict(sorted(rows.items(), key=lambda row: row[1]["params"]))
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in models.items())
    head = f'"timm": "{timm.__version__}", "img_size": 224, "num_classes": 1000'
    Path(sys.argv[1]).write_text(f'{{{head}, "models": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
