"""Texts as classes: the image tower of CLIP, SigLIP and their kin, with the embeddings of texts as its classifier.

The texts are embedded once; afterwards the text tower is out of the way, so that a picture costs one pass of the image
tower, which is read, patched and explained like any other network. Outputs (B, K) are the logits of the original model:
`scale * cos(image, text) + bias`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aha.errors import ModelError
from aha.models.running.hooks import autograd, evaluating

Texts = Sequence[str] | Mapping[str, Tensor]
"""Texts for the model to embed; or texts with their embeddings (D,), where the text tower is elsewhere."""
Tokenizer = Callable[..., Any]

_TEXTS_AT_ONCE = 256
_CLIP_SCALE = 100.0  # where every CLIP's learned scale ends up, for towers that come without theirs
_MOST_SHOWN = 5  # texts that a model's name spells out


class TextClassifier(nn.Module):
    """An image tower whose classes are texts.

    The embeddings are not part of its state: two classifiers of one tower with different texts have the same weights,
    and what was learned about the tower serves both.

    Attributes:
        tower: pictures (B, C, H, W) to embeddings (B, D).
        class_vectors: the texts' embeddings (K, D), of length `scale`.
        is_paired: each text is scored on its own, by a sigmoid, as SigLIP is trained; else they share a softmax.
    """

    def __init__(self, tower: nn.Module, vectors: Tensor, scale: float, bias: float | None = None) -> None:
        super().__init__()
        self.tower = tower
        self.is_paired = bias is not None
        self.class_vectors: Tensor
        self.shift: Tensor
        self.register_buffer("class_vectors", scale * F.normalize(vectors.float(), dim=-1), persistent=False)
        self.register_buffer("shift", vectors.new_full((len(vectors),), bias or 0.0), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of the texts."""
        embeddings = F.normalize(self.tower(images), dim=-1)
        vectors, shift = self.class_vectors.to(embeddings), self.shift.to(embeddings)
        return F.linear(embeddings, vectors, shift)


class _TransformersTower(nn.Module):
    """The image side of a transformers model with two towers."""

    def __init__(self, both: Any) -> None:
        super().__init__()
        self.vision_model = both.vision_model
        self.projection = getattr(both, "visual_projection", None) or nn.Identity()
        config = getattr(both.config, "vision_config", both.config)
        side = getattr(config, "image_size", None)
        self._size = (side, side) if isinstance(side, int) else side

    def forward(self, images: Tensor) -> Tensor:
        is_other = self._size is not None and tuple(images.shape[-2:]) != tuple(self._size)
        options = {"interpolate_pos_encoding": True} if is_other else {}
        embeddings: Tensor = self.projection(self.vision_model(pixel_values=images, **options).pooler_output)
        return embeddings


def is_two_towers(module: nn.Module) -> bool:
    """Does it embed pictures and texts, as models of transformers, open_clip and OpenAI's clip do?"""
    return _is_transformers(module) or _is_open_clip(module)


def _is_transformers(module: Any) -> bool:
    return hasattr(module, "get_text_features") and hasattr(module, "vision_model")


def _is_open_clip(module: Any) -> bool:
    return callable(getattr(module, "encode_text", None)) and isinstance(getattr(module, "visual", None), nn.Module)


def with_texts(module: nn.Module, texts: Texts, tokenizer: Tokenizer | None = None) -> TextClassifier:
    """The classifier that tells these texts apart; the module stays the caller's, and is shared, not copied."""
    names = list(texts) if isinstance(texts, Iterable) else []
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ModelError("texts= takes a list of texts, such as ['a cat', 'a dog on grass']")
    if twice := {name for name in names if names.count(name) > 1}:
        raise ModelError(f"texts= has {sorted(twice)[0]!r} twice")
    scale, bias = _scale(module)
    if isinstance(texts, Mapping):
        vectors = torch.stack([torch.as_tensor(texts[name]).float().flatten() for name in names])
    elif not is_two_towers(module):
        raise ModelError(
            f"{type(module).__name__} has no text tower (transformers and open_clip models have one); "
            "pass embeddings instead: texts={'a cat': VECTOR, ...}"
        )
    else:
        vectors = _embedded(module, names, tokenizer)
    tower = _TransformersTower(module) if _is_transformers(module) else getattr(module, "visual", module)
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    made = TextClassifier(tower, vectors.detach().to(device), scale, bias)
    for part in (made, tower):  # one by one: the parts of the caller's module keep the modes they have
        part.training = module.training
    return made


def _scale(module: Any) -> tuple[float, float | None]:
    """The factor and the shift of the cosines; a shift only where texts are scored one by one."""
    with torch.no_grad():
        scale, bias = getattr(module, "logit_scale", None), getattr(module, "logit_bias", None)
        return (
            _CLIP_SCALE if scale is None else float(scale.exp()),
            None if bias is None else float(bias),
        )


def _embedded(module: Any, texts: list[str], tokenizer: Tokenizer | None) -> Tensor:
    """Embeddings (K, D) of texts by the module's own text tower."""
    if tokenizer is None:
        raise ModelError(
            f"{type(module).__name__} needs its tokenizer to read texts: processor=AutoProcessor.from_pretrained(...) "
            "for transformers, tokenizer=open_clip.get_tokenizer(NAME) for open_clip"
        )
    device = next(module.parameters()).device
    parts = [texts[start : start + _TEXTS_AT_ONCE] for start in range(0, len(texts), _TEXTS_AT_ONCE)]
    with evaluating(module), autograd(False):
        if not _is_transformers(module):
            return torch.cat([module.encode_text(tokenizer(part).to(device)) for part in parts])
        length = module.config.text_config.max_position_embeddings
        # Padded to the full length, as SigLIP was trained; CLIP looks at the end of the text wherever it is.
        options = {"padding": "max_length", "truncation": True, "max_length": length, "return_tensors": "pt"}
        found = [module.get_text_features(**tokenizer(part, **options).to(device)) for part in parts]
        return torch.cat([getattr(answer, "pooler_output", answer) for answer in found])


def split_texts(name: str) -> tuple[str, list[str] | None]:
    """`PLACE[a cat; a dog]` -> `PLACE` and its texts; a name without brackets has none."""
    place, bracket, inside = name.partition("[")
    if not bracket or not name.endswith("]"):
        return name, None
    return place, [text.strip() for text in inside[:-1].split(";")]


def in_brackets(texts: Sequence[str]) -> str:
    """Texts as part of a model's name: in full if they are few, else the first ones and a digest of all."""
    if len(texts) <= _MOST_SHOWN:
        return f"[{'; '.join(texts)}]"
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=4).hexdigest()
    return f"[{'; '.join(texts[: _MOST_SHOWN - 2])}; and {len(texts) - _MOST_SHOWN + 2} more, {digest}]"


def names_of(texts: Sequence[str], is_paired: bool) -> tuple[str, ...]:
    """Class names; one text that is scored by itself is compared with its absence."""
    return (f"not {texts[0]}", texts[0]) if len(texts) == 1 and is_paired else tuple(texts)
