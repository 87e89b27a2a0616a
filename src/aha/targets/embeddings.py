"""`similarity`: how alike an image is to another image, a text or a vector, for encoders.

Shapes: embeddings (B, D); what they are compared with (D,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from aha.core.arrays import read_arrays
from aha.core.pictures import read_image
from aha.errors import TargetError
from aha.models import TargetModel
from aha.models.explained import Answer, Explained
from aha.targets.base import Held, Number, Shown, objective

_TOWER = "tower"  # of a model whose classes are texts: what it embeds images with


@objective("similarity")
@dataclass(frozen=True)
class Similarity(Number):
    """The cosine between the image's embedding and another one. Deletion shows the cosine, from -1 to 1.

    Attributes:
        picture: a file, or several, whose mean direction counts: a class, say; in Python also images and arrays.
        text: one of the texts of a model with texts.
        vector: numbers (D,), an array of them, or a .npy file.
    """

    picture: str | tuple[str | Held, ...] | Held | None = None
    text: str | None = None
    vector: tuple[float, ...] | str | Held | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "picture", _held(self.picture))
        object.__setattr__(self, "vector", Held.of(self.vector))
        super().__post_init__()
        if sum(given is not None for given in (self.picture, self.text, self.vector)) != 1:
            raise TargetError("similarity: give one of picture=, text= and vector=")

    def inside(self, model: TargetModel) -> tuple[str, ...]:
        """The image tower, where the outputs are comparisons with texts."""
        return (_TOWER,) if model.has_texts else ()

    def function(self, model: TargetModel, shown: Shown | None) -> Callable[[Answer], Tensor]:
        """The cosine with what is embedded once, now."""
        other = self._other(model)

        def cosine(answer: Answer) -> Tensor:
            embeddings = _embeddings(answer)
            if embeddings.shape[1:] != other.shape:
                raise TargetError(f"{self}: {len(other)} numbers, but the embedding has {embeddings.shape[1]}")
            return F.cosine_similarity(embeddings, other.to(embeddings)[None], dim=1)

        return cosine

    def _other(self, model: TargetModel) -> Tensor:
        if self.text is not None:
            return _text_vector(model, self.text)
        if self.vector is not None:
            return _as_vector(self.vector)
        pictures = self.picture if isinstance(self.picture, tuple) else (self.picture,)
        return embedding(model, [each.values if isinstance(each, Held) else each for each in pictures])


def embedding(model: TargetModel, pictures: Sequence[Any]) -> Tensor:
    """The mean direction (D,) of the embeddings of images; float tensors (C, H, W) are model inputs already."""
    inputs = torch.stack([_inputs(model, picture) for picture in pictures]).to(model.device)
    inside = (_TOWER,) if model.has_texts else ()
    found = model.explaining(Explained("embedding", _embeddings, inside)).outputs(inputs)
    return F.normalize(found.detach().float(), dim=1).mean(dim=0)


def _embeddings(answer: Answer) -> Tensor:
    found = answer.inside.get(_TOWER)
    return found if isinstance(found, Tensor) else answer.outputs


def _inputs(model: TargetModel, picture: Any) -> Tensor:
    if isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.dtype.kind == "f" and len(picture) <= 4:
        return torch.from_numpy(picture)
    return model.stated_preprocessing()(read_image(picture))[0]


def _text_vector(model: TargetModel, text: str) -> Tensor:
    if not model.has_texts:
        raise TargetError(f"{model.spec} has no texts; load a CLIP model with texts={[text]!r}")
    names = list(model.class_names or ())
    vectors = model.class_vectors
    if text not in names[-len(vectors) :]:
        raise TargetError(f"{text!r} is not one of the model's texts; load it with texts={[text, '...']!r}")
    return vectors[names[-len(vectors) :].index(text)]


def _as_vector(vector: tuple[float, ...] | str | Held) -> Tensor:
    if isinstance(vector, str):
        try:
            (found,) = read_arrays(Path(vector).read_bytes()).values()
        except (OSError, ValueError) as error:
            raise TargetError(f"cannot read the vector {vector}: {error}") from None
    else:
        found = vector.values if isinstance(vector, Held) else np.asarray(vector)
    values = torch.from_numpy(np.asarray(found, dtype=np.float32).squeeze())
    if values.dim() != 1 or not bool(values.isfinite().all()):
        raise TargetError(f"a vector of shape {tuple(values.shape)} is not (D,) finite numbers")
    return values


def _held(picture: Any) -> Any:
    if isinstance(picture, list | tuple):
        return tuple(_held(each) for each in picture)
    if isinstance(picture, Path):
        return str(picture)
    return Held.of(np.asarray(picture.convert("RGB")) if isinstance(picture, Image.Image) else picture)
