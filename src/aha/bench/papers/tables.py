"""What the papers printed tables of: models, methods and metrics by their printed names, and each table's protocol.

The package makes plans of them; the numbers are in `printed.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_VIT_B16 = "timm:vit_base_patch16_224.augreg2_in21k_ft_in1k"
_VIT_B32 = "timm:vit_base_patch32_224.augreg_in21k_ft_in1k"
MODELS = {
    "ViT-B/16": _VIT_B16,
    "ViT-B/32": _VIT_B32,
    "ViT-B/8": "timm:vit_base_patch8_224.augreg2_in21k_ft_in1k",
    "ViT-Ti/16": "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "ViT-L/16": "timm:vit_large_patch16_224.augreg_in21k_ft_in1k",
    "CLIP-B/16": "timm:vit_base_patch16_clip_224.openai_ft_in12k_in1k",
    "CLIP-L/14": "timm:vit_large_patch14_clip_224.openai_ft_in12k_in1k",
    "DINOv2-B/14": "hf:facebook/dinov2-base-imagenet1k-1-layer",
    "DINOv2-L/14": "hf:facebook/dinov2-large-imagenet1k-1-layer",
    "DeiT3-B/16": "timm:deit3_base_patch16_224.fb_in1k",
    "DeiT3-L/16": "timm:deit3_large_patch16_224.fb_in1k",
    "ConvNeXt-S": "timm:convnext_small.fb_in1k",
    "ConvNeXt": "timm:convnext_tiny.fb_in1k",
    "ResNet-18": "timm:resnet18.tv_in1k",
    "ResNet-50": "timm:resnet50.tv_in1k",
    "WideResNet-50-2": "timm:wide_resnet50_2.tv_in1k",
    "DenseNet-121": "timm:densenet121.tv_in1k",
    "DenseNet-161": "timm:densenet161.tv_in1k",
    "VGG-16": "timm:vgg16.tv_in1k",
}
METHODS = {
    "Grad-CAM": "grad_cam",
    "Grad-CAM++": "grad_cam_pp",
    "HiResCAM": "hires_cam",
    "ScoreCAM": "score_cam",
    "AblationCAM": "ablation_cam",
    "IG": "attention_ig",
    "Trans-Att": "transition_attention",
    "TAM": "transition_attention",
    "T-Attr": "transformer_attribution",
    "Bi-Att": "bidirectional",
    "Rollout": "rollout",
    "TIS": "tis",
    "ViT-CX": "vit_cx",
    "MDA": "mda",
    "LeGrad": "legrad",
    "IxG+": "ixg_plus",
    "Libra IxG+": "libra_ixg_plus",
    "MUTEX": "mutex",
    "CAAP": "caap",
    "Simple Insertion": "simple_insertion",
    "Simple Deletion": "simple_deletion",
    "AHA": "aha",
    "AHA T=0": "aha",
    "AHA T=3": "aha(refine=3)",
}
# VAR prints the value that a method reaches inside it.
_VAR = {
    "GradCam": "grad_cam",
    "GBP": "guided_backprop",
    "Guide-GC": "guided_grad_cam",
    "IxG": "input_x_gradient",
    "IG": "integrated_gradients",
    "LRP": "lrp",
    "Bi-attn": "bidirectional",
    "InFlow": "inflow",
    "Grad-Rollout": "grad_rollout",
    "T-attn": "transition_attention",
    "T-LRP": "transformer_attribution",
    "Gradient": "gradient",
}
METHODS |= {f"{name} + VAR": f"var({inner})" for name, inner in _VAR.items()}
_VAR_ON_MOSAICS = {f"{name} + VAR": f"var({inner}, classes='grid')" for name, inner in _VAR.items()}
COLUMNS = {
    "Deletion": "deletion",
    "Insertion": "insertion",
    "Ins-Del": "ins_del",
    "Positive": "positive",
    "Negative": "negative",
    "Neg-Pos": "neg_pos",
    "ADP": "average_drop",
    "PIC": "confidence_increase",
    "Insertion (RISE, normalised MR)": "insertion",
    "Deletion (RISE, normalised MR)": "deletion",
    "Ins-Del (RISE)": "ins_del",
    "Insertion (MAS)": "mas_insertion",
    "Deletion (MAS)": "mas_deletion",
    "Ins-Del (MAS)": "mas",
    "MAP": "segmentation_ap",
    "IoU": "miou",
    "F1": "segmentation_f1_rows",
    "Positive AUC": "positive",
    "Negative AUC": "negative",
    "Monotonicity (Spearman)": "monotonicity",
    "AUPR1": "aupr1",
    "AUPR0": "aupr0",
    "PG": "pointing_game",
    "RA": "region_attribution",
    "AIC": "aic",
}
BASELINES = ("random_map", "center_map", "edge_map")


@dataclass(frozen=True)
class PaperTable:
    """A published table.

    Attributes:
        tables: their names in `printed.json`.
        models: as printed; `MODELS` says which weights stand for them.
        data: kind of data.
        settings: further settings of the plan.
        caveat: how far the protocol is the paper's.
        columns: printed metric -> ours, where it differs from the usual.
        methods: as this package writes them, if not just the printed ones.
        names: printed method -> ours, where it differs from the usual.
    """

    title: str
    tables: tuple[str, ...]
    models: tuple[str, ...]
    metrics: tuple[str, ...]
    caveat: str
    data: str = "imagenet"
    targets: tuple[str, ...] = ("top1",)
    settings: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def method(self, printed: str) -> str | None:
        """A printed method as this package writes it; None if it has no such method."""
        return self.names.get(printed, METHODS.get(printed))


_AHA_CAVEAT = (
    "The paper states neither its kernel of the blur nor the steps; 224 steps and blur(31, 10) are this package's "
    "choice. So is the trapezoid, where eq. 3-4 take the mean over the steps: .002 apart at most. 50 000 validation "
    "images in the paper."
)
_MDA_CAVEAT = "The published code's curves; images resized as the model's weights ask, not to 224 as in the code."
_CAAP_CAVEAT = "Reference values and image numbers are not stated in the paper; RISE's are taken."
_SEG_CAVEAT = "ImageNet-S with the true class; the paper's error bars suggest 128 images."
_BOTH = ("top1", "label")
_L = ("ViT-L/16", "CLIP-L/14", "DINOv2-L/14", "DeiT3-L/16")
_B = ("ViT-B/16", "CLIP-B/16", "DINOv2-B/14", "DeiT3-B/16")
_CNN = ("ResNet-18", "ResNet-50", "DenseNet-161", "VGG-16")
_FILTERED = {"filter": "mda", "limit": 5000}
_REGION = {"IoU": "region_iou", "F1": "region_f1"}


def _aha(number: int, model: str) -> PaperTable:
    kind = "each reference" if number > 4 else "mean of three references"
    return PaperTable(
        f"AHA, table {number}: {model}, {kind}", (f"AHA {number}",), (model,), ("aha",), _AHA_CAVEAT, targets=_BOTH
    )


def _mda(number: int, model: str) -> PaperTable:
    title = f"MDA, table {number}: {model}, insertion, deletion and MAS"
    return PaperTable(title, (f"MDA {number}",), (model,), ("mda",), _MDA_CAVEAT, settings=_FILTERED)


def _caap(number: int, models: tuple[str, ...], *, masks: bool) -> PaperTable:
    title = f"CAAP, table {number}: {'localisation' if masks else 'deletion and insertion'}"
    if masks:
        return PaperTable(
            title, (f"CAAP {number}",), models, ("caap",), _SEG_CAVEAT, data="imagenet-s", targets=("label",)
        )
    return PaperTable(title, (f"CAAP {number}",), models, ("rise",), _CAAP_CAVEAT)


PAPERS: dict[str, PaperTable] = {
    "aha-table1": _aha(1, "ViT-B/16"),
    "aha-table2": _aha(2, "ViT-B/32"),
    "aha-table3": _aha(3, "ConvNeXt-S"),
    "aha-table4": PaperTable(
        "AHA, table 4: MDA's protocol", ("AHA 4",), ("ViT-B/16",), ("mda",), _MDA_CAVEAT, settings=_FILTERED
    ),
    "aha-table5": _aha(5, "ViT-B/16"),
    "aha-table6": _aha(6, "ViT-B/32"),
    "aha-table7": _aha(7, "ConvNeXt-S"),
    "aha-figure3": PaperTable(
        "AHA, figure 3: curves and examples",
        ("AHA 1",),
        ("ViT-B/16",),
        ("aha",),
        _AHA_CAVEAT,
        settings={"maps": "float16", "limit": 1000},
    ),
    "aha-figure6": PaperTable(
        "AHA, figure 6: steps of refinement",
        ("AHA text 4.5",),
        ("ViT-B/16",),
        ("aha",),
        _AHA_CAVEAT,
        methods=("aha", *(f"aha(refine={steps})" for steps in range(1, 6))),
        settings={"limit": 1000},
    ),
    "mda-table1": _mda(1, "ViT-B/16"),
    "mda-table2": PaperTable(
        "MDA, table 2: segmentation",
        ("MDA 2",),
        ("ViT-B/32",),
        ("seg",),
        "Threshold at the map's mean, as in the published code of the metric.",
        data="imagenet-segmentation",
    ),
    "mda-table3": PaperTable(
        "MDA, table 3: positive and negative perturbation",
        ("MDA 3",),
        ("ViT-B/32",),
        ("chefer",),
        "Maps of the predicted class, accuracy against the true one.",
    ),
    "mda-table4": _mda(4, "ViT-B/32"),
    "mda-table5": _mda(5, "ViT-Ti/16"),
    "mda-table6": PaperTable(
        "MDA, table 6: monotonicity",
        ("MDA 6",),
        ("ViT-B/32",),
        ("monotonicity(steps=224, references=(adaptive_blur(smallest=1),))",),
        _MDA_CAVEAT,
        settings={"filter": "mda", "limit": 100},
    ),
    "caap-table1": _caap(1, _L, masks=False),
    "caap-table2": _caap(2, _L, masks=True),
    "caap-table4": _caap(4, _B, masks=False),
    "caap-table5": _caap(5, _B, masks=True),
    "caap-table14": _caap(14, _CNN, masks=False),
    "caap-table15": _caap(15, _CNN, masks=True),
    "var-table1": PaperTable(
        "VAR, table 1: regions of mosaics",
        ("VAR 3",),
        ("ResNet-50", "ViT-B/16"),
        ("var",),
        "Quad-ImageNet alone: how Part-Quad-ImageNet and COCO were prepared is not published. Printed in table 3.",
        columns=_REGION,
        methods=tuple(spec for name, inner in _VAR.items() for spec in (inner, _VAR_ON_MOSAICS[f"{name} + VAR"])),
        names=_VAR_ON_MOSAICS,
    ),
    "var-table2": PaperTable(
        "VAR, table 2: performance information curves",
        ("VAR 2a", "VAR 2b"),
        ("ResNet-50", "WideResNet-50-2", "DenseNet-121", "ConvNeXt", "ViT-B/8", "ViT-B/16", "ViT-B/32"),
        ("pic",),
        "The size of the paper's ConvNeXt is not stated; the smallest is taken.",
        settings={"limit": 1000},
    ),
}
