"""Layer-wise relevance propagation for convolutional networks and transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aha.core.validation import NonNegativeFloat
from aha.errors import CapabilityError
from aha.methods.base import Method, method
from aha.methods.gradients.layer_rules import Kinds, LayerRules
from aha.models import TargetModel
from aha.models.scores import Score

Preset = Literal["epsilon", "gamma", "zplus", "epsilon_plus", "epsilon_plus_flat", "epsilon_gamma_box", "attn_lrp"]

PRESETS: dict[Preset, Kinds] = {
    "epsilon": Kinds("epsilon", "epsilon", "epsilon"),
    "gamma": Kinds("gamma", "gamma", "gamma"),
    "zplus": Kinds("zplus", "zplus", "zplus"),
    "epsilon_plus": Kinds("zplus", "zplus", "epsilon"),
    "epsilon_plus_flat": Kinds("flat", "zplus", "epsilon"),
    "epsilon_gamma_box": Kinds("box", "gamma", "epsilon"),
    "attn_lrp": Kinds("gamma", "gamma", "gamma"),
}
DENSE_SHARE = 0.2  # with AttnLRP, of gamma in dense layers: its example for ViTs has .05 beside .25 in convolutions


@method("lrp", family="gradient", needs={"gradients"}, volumes=True, citation="Bach et al., PLoS ONE 2015")
@dataclass(frozen=True)
class LRP(Method):
    """The class score shared out backwards, layer by layer: `R_i = sum_j c_ij / z_j R_j`, `c_ij = x_i w_ij`.

    Rules: "epsilon" adds a little to `z_j` (Bach et al. 2015, eq. 58), "zplus" counts positive contributions alone,
    "gamma" favours those of the sign of `z_j` (Montavon et al. 2019). Three presets combine them: dense layers with
    epsilon, convolutions with z-plus or gamma, and the first one spread evenly ("flat") or within the bounds of pixel
    values ("box"). On vision transformers the maps of "epsilon" are noise.

    "attn_lrp" has the rules of AttnLRP (Achtibat et al., ICML 2024) with the gamma rule in convolutions and, of a fifth
    of `gamma`, in dense layers, as its code advises for vision transformers: a softmax shares relevance out among its
    logits, both factors of a product get half, layer norms are linear for a given spread, and biases and positions keep
    their shares. With `attention="constant"` it is that code's choice for these networks.

    A batch norm behind a convolution is merged with it; elsewhere it passes relevance on, as activations and, with the
    other presets, layer norms do. With these, linear layers on maps or tokens are convolutions. The winner of a max
    pooling gets all of it. Gates that scale channels, and attention weights, count as constants. What biases contribute
    stays with them unless `bias` is "ignore".

    Reads: every operation of the network, by gradients with other rules.
    Cost: one forward and one backward pass.
    Example: `lrp(preset='attn_lrp')`.

    Attributes:
        preset: see above.
        epsilon: added to denominators, with their sign, where the epsilon and gamma rules divide.
        gamma: how much the gamma rule favours contributions of the right sign.
        bias: "absorb" relevance as published, or "ignore" biases so that everything arrives at the pixels.
        sums: how the summands of residual connections, and averaged places, share relevance: by "magnitude", which is
            always between nothing and all of it, or by "value", as in zennit, where summands that nearly cancel get
            large shares of opposite sign. None: by value with the presets "epsilon" and "attn_lrp", by magnitude with
            the others.
        attention: whether attention weights count as constants or their relevance is shared out among their logits.
            None: shared with the preset "attn_lrp", constant with the others.
    """

    preset: Preset = "epsilon_plus_flat"
    epsilon: NonNegativeFloat = 1e-6
    gamma: NonNegativeFloat = 0.25
    bias: Literal["absorb", "ignore"] = "absorb"
    sums: Literal["magnitude", "value"] | None = None
    attention: Literal["constant", "shared"] | None = None

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        bounds = None
        if model.preprocessing is not None:
            one = (1, images.shape[1], *[1] * (images.dim() - 2))
            bounds = tuple(model.to_inputs(images.new_full(one, value)) for value in (0.0, 1.0))

        is_attn = self.preset == "attn_lrp"
        by_value = is_attn or self.preset == "epsilon" if self.sums is None else self.sums == "value"
        attending = is_attn if self.attention is None else self.attention == "shared"
        dense_gamma = DENSE_SHARE * self.gamma if is_attn else None
        with_bias = self.bias == "absorb"
        start = shared_out(model.score.differentiated())

        def relevances(part: slice) -> Tensor:
            rules = LayerRules(
                PRESETS[self.preset],
                self.epsilon,
                self.gamma,
                by_value,
                with_bias,
                bounds,
                dense_gamma,
                absorbing=is_attn,
                attending=attending,
            )
            with model.rules(rules.table(), attention_in_parts=True):
                trace = model.trace(images[part], inputs=True, score=start)
            assert trace.inputs is not None
            try:
                (relevance,) = trace.gradients(classes[part], trace.inputs)  # (B, C, H, W)
            except RuntimeError as error:
                if "inplace operation" not in str(error):
                    raise
                raise CapabilityError(
                    f"lrp does not fit {model.spec}, which changes tensors in place; use gradient"
                ) from None
            return relevance.sum(dim=1)  # (B, H, W), of volumes (B, D, H, W)

        return torch.cat(model.chunks.run(relevances, len(images)))


def shared_out(score: Score) -> Score:
    """Where relevance starts: its slope at each output is what that output adds to the score, `y_k ds/dy_k`.

    For a logit that is the logit at its own output and nothing elsewhere. Of a single output, the second class has the
    opposite.
    """

    def shares(outputs: Tensor, classes: Tensor) -> Tensor:
        alone = outputs.detach().requires_grad_()
        (slopes,) = torch.autograd.grad(score(alone, classes).sum(), alone)
        return (outputs * (alone.detach() * slopes)).sum(dim=1)

    return Score(f"shares of {score.name}", shares)
