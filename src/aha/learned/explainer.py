"""The explainer: a frozen encoder's features and a class in, a dense map out; saved as safetensors and a config.

folder/
  model.safetensors     decoder, and the class embedding if there is one; never the encoder
  config.json           target and its digest, encoder, sizes, preprocessing, training settings, measured scores,
                        the SHA-256 of the weights, and that of the config itself
  README.md             model card
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from aha import __version__
from aha.core.disk import result_key, write_atomically, writing
from aha.core.validation import Range, from_json, read_json
from aha.errors import AhaWarning, ModelError, SpecError, WeightsError, warn
from aha.learned import universal
from aha.learned.calibration import calibrated
from aha.learned.decoder import Decoder, DecoderConfig, Given, unit_scaled
from aha.learned.dpt import DPTDecoder
from aha.learned.evidence import (
    LOG_ODDS,
    LOGIT,
    captures,
    class_evidence,
    evidence_channels,
    is_token_model,
    standardised_maps,
    traced,
)
from aha.learned.looks import Whole, revised, revision_config
from aha.learned.settings import ENCODERS, Design, Evidence
from aha.models import Captures, TargetModel, load_model, refuse_code
from aha.models.loading.weights import check_weights, load_weights, state_digest
from aha.models.running.hooks import preserved_random_state
from aha.models.tracing import Trace

Conditioning = Literal["head", "embedding", "facts"]  # as built: "auto" is decided
Form = Literal["own", "stages", "tokens"]  # as built: which of the two universal readings is decided
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
CHECKSUM, OWN_CHECKSUM = "weights_sha256", "config_sha256"
"""In the config: those of the file of weights, and of the config without this entry."""
_NEXT = "next.safetensors"
"""New weights until the config that belongs to them is in place: a save that is killed leaves a whole explainer."""
_LEVELS = 4


@dataclass(frozen=True)
class Look:
    """One pass of the target over its inputs (B, C, H, W).

    Attributes:
        features: of the encoder, shallow to deep.
        trace: from which evidence is read by a backward pass, if it is.
        answered: the target's outputs (B, K), where it has run.
    """

    target: TargetModel
    inputs: Tensor
    features: list[Tensor]
    trace: Trace | None = None
    answered: Tensor | None = None

    @property
    def outputs(self) -> Tensor:
        """The target's outputs (B, K); a target that is not the encoder runs for them now."""
        return self.target.outputs(self.inputs) if self.answered is None else self.answered


class ExplainerWarning(AhaWarning):
    """An explainer is used on a model that it was not trained for."""


@dataclass(frozen=True)
class ExplainerConfig:
    """Everything needed to build the explainer again.

    Attributes:
        target: spec of the explained model, and the digest of its weights; of all that a universal one was trained on,
            and no digest.
        encoder: "target" for the explained model's own features, else a model spec.
        stages: encoder stages that are read, shallow to deep.
        conditioning: "head", the target's classifier weights; "embedding", a learned table; or "facts" of the answer.
        num_classes: of the target; 0 where classes do not matter.
        decoder: its sizes.
        evidence: "backward", of every level by one backward pass; "forward", of the deepest features by the class
            weights; or "none".
        evidence_stages: stages that backward evidence is read from; a transformer's comes from all of its blocks.
        rivals: class evidence is that against the class's rivals: see `against_rivals`.
        form: "own" reads features and class vectors of one network; "stages" and "tokens" read what every network of
            that kind has: see `universal.py`.
        revision: channels of the decoder that corrects maps by two more looks; 0 if there is none: see `looks.py`.
        preprocessing: how images become the target's inputs, for the record.
        temperature: the final one of training, used in refinement.
        response: share of the model's response that each equal part of the pixels carries, most important first; empty
            if it was not measured.
        training: settings of the run, for the record.
        scores: measured after training, for the record.
    """

    target: str
    target_digest: str
    encoder: str
    stages: tuple[Annotated[int, Range(0, 2**16)], ...]
    conditioning: Conditioning
    num_classes: Annotated[int, Range(0, 2**24)]
    decoder: DecoderConfig
    evidence: Evidence
    evidence_stages: tuple[Annotated[int, Range(0, 2**16)], ...] = ()
    rivals: bool = False
    form: Form = "own"
    revision: Annotated[int, Range(0, 2**13)] = 0
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    temperature: Annotated[float, Range(1e-6, 1e3)] = 0.01
    response: tuple[Annotated[float, Range(-1e3, 1e3)], ...] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__

    @property
    def name(self) -> str:
        """What it is called where its maps are shown."""
        return "universal" if self.is_for_all else f"of {self.target}"

    @property
    def is_for_all(self) -> bool:
        """Does it belong to no network, and so to every one that it can read?"""
        return self.form != "own" and not self.target_digest


class Explainer(nn.Module):
    """A trained (or fresh) explainer of one target model."""

    def __init__(self, config: ExplainerConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with preserved_random_state(seed=seed):
            self.decoder = DPTDecoder(config.decoder) if config.decoder.kind == "dpt" else Decoder(config.decoder)
            self.embedding: nn.Embedding | None = None
            if config.conditioning == "embedding":
                self.embedding = nn.Embedding(config.num_classes, config.decoder.class_dim)
                nn.init.normal_(self.embedding.weight, std=0.02)
            self.revision: Decoder | None = None
            if config.revision and config.form != "own":
                sizes = config.decoder.stride, config.decoder.cohesion
                self.revision = Decoder(revision_config(config.form, config.revision, *sizes))
        self._encoder: TargetModel | None = None
        self.source = ""  # the folder or repository that it was read from

    @property
    def digest(self) -> str:
        """Digest of all that its maps depend on: what was learned, and how it is used."""
        config = self.config
        used = (
            config.encoder,
            config.stages,
            config.conditioning,
            config.evidence,
            config.evidence_stages,
            config.rivals,
            config.form,
            config.temperature,
            config.response,
            config.decoder,
        )
        return result_key(state_digest(self.state_dict()), repr(used + (config.revision,) * bool(config.revision)))

    @classmethod
    def for_target(cls, target: TargetModel, design: Design | None = None, *, seed: int = 0) -> Self:
        """A fresh explainer whose sizes fit the target and the encoder; "auto" conditioning means "head"."""
        design = design or Design()
        if design.form == "universal":
            return cls(universal_config(target, design), seed=seed).to(target.device)
        conditioning: Conditioning = "embedding" if design.conditioning == "embedding" else "head"
        named, blocks = ENCODERS.get(design.encoder, (design.encoder, None))
        source = target if named == "target" else _load_encoder(named, target)
        stages = design.stages or blocks or default_stages(source)
        if not 0 <= min(stages) <= max(stages) < len(source.structure().stages):
            raise SpecError(f"stages={stages}: {source.spec} has the stages 0 to {len(source.structure().stages) - 1}")
        preprocessing = source.stated_preprocessing()
        blank = torch.zeros(1, len(preprocessing.mean), *preprocessing.size, device=source.device)
        features, _ = source.features(blank, stages)
        evidence = design.evidence
        weighs = named == "target" and conditioning == "head" and features[-1].shape[1] == target.class_vectors.shape[1]
        if evidence == "forward" and not weighs:
            evidence = "none"  # class weights say nothing about features of another network, or far from the classifier
        decoder = DecoderConfig(
            tuple(f.shape[1] for f in features),
            target.class_vectors.shape[1] if conditioning == "head" else design.class_dim,
            evidence_channels(target, len(stages)) if evidence == "backward" else (),
            len(target.stated_preprocessing().mean),
            design.width,
            design.stride,
            design.cohesion if evidence == "backward" and is_token_model(target) else 0.0,
            design.decoder,
        )
        if design.decoder == "dpt" and evidence != "none":
            raise SpecError("decoder=dpt reads features and class vectors alone; add evidence=none")
        config = ExplainerConfig(
            target.spec,
            target.digest,
            named,
            stages,
            conditioning,
            target.num_classes,
            decoder,
            evidence,
            default_stages(target)[-len(stages) :] if evidence == "backward" else (),
            design.rivals and evidence != "none" and _shares_probability(target),
            preprocessing=asdict(target.stated_preprocessing()),
        )
        explainer = cls(config, seed=seed)
        explainer._encoder = None if named == "target" else source
        return explainer.to(target.device)

    def start_from(self, other: Explainer) -> None:
        """Takes over another explainer's weights, of the same sizes; a correction that only one has does not count."""
        parts: tuple[nn.Module, nn.Module] = (self, other)
        if (self.revision is None) != (other.revision is None):
            parts = self.decoder, other.decoder
            self.config = replace(self.config, response=other.config.response, temperature=other.config.temperature)
        mine, theirs = ({name: tuple(value.shape) for name, value in part.state_dict().items()} for part in parts)
        if mine != theirs:
            raise ModelError("the explainer to start from has other sizes; use the same encoder, stages and width")
        parts[0].load_state_dict(parts[1].state_dict())

    def adopt_encoder(self, other: Explainer) -> None:
        """Uses the encoder that another explainer has loaded already."""
        self._encoder = other._encoder

    def look(self, target: TargetModel, inputs: Tensor) -> Look:
        """Runs the target once on its inputs (B, C, H, W), and the encoder if that is another network."""
        own, config = self.config.encoder == "target", self.config
        if config.form != "own":
            trace = traced(target, inputs, universal.captures(target, inputs.shape[1:]))
            return Look(target, inputs, [], trace, trace.outputs.detach())
        if config.evidence == "backward":
            trace = traced(target, inputs, self.reads(target, inputs.shape[1:]))
            features = [trace.features[stage].detach() for stage in config.stages] if own else []
            return Look(target, inputs, features or self._encoded(target, inputs), trace, trace.outputs.detach())
        if own:
            features, outputs = target.features(inputs, config.stages)
            return Look(target, inputs, features, answered=outputs)
        return Look(target, inputs, self._encoded(target, inputs))

    def reads(self, target: TargetModel, size: Sequence[int]) -> Captures:
        """What a look takes from the target's forward pass of inputs of this size (C, H, W)."""
        if self.config.form != "own":
            return universal.captures(target, size)
        own = self.config.stages if self.config.encoder == "target" else ()
        if self.config.evidence == "backward":
            return captures(target, size, own, self.config.evidence_stages)
        return Captures(features=own)

    def _encoded(self, target: TargetModel, inputs: Tensor) -> list[Tensor]:
        """Features of an encoder that is not the target."""
        if self._encoder is None:
            self._encoder = _load_encoder(self.config.encoder, target)
        # The same pixels in the encoder's own scale, and at the size it was built for.
        pixels = target.to_pixels(inputs)
        size = self._encoder.stated_preprocessing().size
        if pixels.shape[-2:] != size:
            pixels = F.interpolate(pixels, size, mode="bilinear", antialias=True).clamp(0, 1)
        return self._encoder.features(self._encoder.to_inputs(pixels), self.config.stages)[0]

    def read(self, target: TargetModel, look: Look, classes: Tensor, dropped: Collection[int] = ()) -> Given:
        """What the decoder takes, for the classes (B,) of the images of a look; a universal one may miss levels."""
        if self.config.form != "own":
            assert look.trace is not None
            return universal.given(target, look.trace, look.inputs, classes, dropped)
        vectors = _vectors_of(target)[classes] if self.embedding is None else self.embedding(classes)
        features = [f.float() for f in look.features]
        evidence: list[Tensor] = []
        if look.trace is not None:
            score = LOG_ODDS if self.config.rivals else LOGIT
            evidence, start = class_evidence(look.trace, classes, self.config.evidence_stages, score)
        elif self.config.evidence == "forward":
            weights = _vectors_of(target)
            towards = against_rivals(weights, classes, look.outputs) if self.config.rivals else weights[classes]
            start = forward_evidence(features[-1], unit_scaled(towards))
        else:
            start = torch.zeros_like(features[-1][:, 0])
        return Given(features, unit_scaled(vectors), evidence, start, look.inputs.float())

    def forward(self, given: Given, size: tuple[int, ...]) -> Tensor:
        """Maps (B, H, W); of volumes (D, H, W), whose slices are given one after another, (B, D, H, W)."""
        if len(size) == 2:
            maps: Tensor = self.decoder(given, size)
            return maps
        drawn: Tensor = self.decoder(given, size[1:], slices=size[0])
        return drawn.reshape(-1, *size)

    def maps(self, target: TargetModel, inputs: Tensor, classes: Tensor, reviser: Explainer | None = None) -> Tensor:
        """Maps (B, H, W) of target inputs (T = 0); an image that is there for several classes runs forward once.

        Of volumes, maps (B, D, H, W). A reviser, this explainer itself or a universal one, corrects maps by two more
        looks.
        """
        self.eval()
        inputs = inputs.to(target.device)
        with torch.no_grad(), target.caching():
            look = self.look(target, inputs)
            given = self.read(target, look, classes)
            maps = self.forward(given, tuple(map(int, inputs.shape[2:])))
            if reviser is None:
                return maps
            whole = self.whole(target, look, classes, given)
            return reviser.eval().revised(target, whole, inputs, classes, maps)

    def whole(self, target: TargetModel, look: Look, classes: Tensor, given: Given) -> Whole:
        """What a correction reads of the whole images; if this explainer reads something else, they run once more."""
        if self.config.form == "own" or look.trace is None:
            trace = traced(target, look.inputs, universal.captures(target, look.inputs.shape[1:]))
            return Whole.read(target, trace, look.inputs, classes)
        return Whole.read(target, look.trace, look.inputs, classes, given)

    def revised(self, target: TargetModel, whole: Whole, inputs: Tensor, classes: Tensor, maps: Tensor) -> Tensor:
        """Maps (B, H, W) corrected by two more looks."""
        if self.revision is None:
            raise ModelError(
                f"the explainer {self.config.name} has learned no correction; train it with --preset looks"
            )
        return revised(self.revision, target, inputs, classes, maps, whole)

    def calibrated(self, maps: Tensor) -> Tensor:
        """Maps (B, H, W) in the same order whose mass follows the model's response; as they are if it is not known."""
        return calibrated(maps, self.config.response) if self.config.response else maps

    def check_target(self, target: TargetModel, size: Sequence[int] | None = None) -> None:
        """Refuses a model of another kind, and warns of other weights: that is the out-of-distribution case.

        `size` (C, H, W) is that of its inputs. A module that does not state it can only be asked about its evidence
        where it is given.
        """
        if self.config.form != "own":
            self._check_reading(target, size)
            return
        if target.explained is not None:
            raise ModelError(
                f"this explainer was trained for classes, not for {target.explained.name}; use aha('universal')"
            )
        # Other texts are other classes of the same network, and their embeddings are all that is asked of them.
        is_open = target.has_texts and self.embedding is None
        if target.num_classes != self.config.num_classes and not is_open:
            raise ModelError(
                f"this explainer knows {self.config.num_classes} classes; {target.spec} has {target.num_classes}"
            )
        read, has_size = self.config.decoder.evidence, size is not None or target.preprocessing is not None
        if has_size and self.config.evidence == "backward" and read != evidence_channels(target, len(read), size):
            raise ModelError(
                f"this explainer reads other class evidence than {target.spec} gives: it is of an earlier version, "
                "or of another network; train it again"
            )
        self._check_digest(target)

    def _check_reading(self, target: TargetModel, size: Sequence[int] | None) -> None:
        """Refuses a network of the other kind; warns if this explainer was adapted to another one."""
        if size is not None or target.preprocessing is not None:
            found = universal.reading_of(target, size)
            if found != self.config.form:
                raise ModelError(f"this explainer reads {self.config.form} of a network, {target.spec} has {found}")
        if not self.config.is_for_all:
            self._check_digest(target)

    def _check_digest(self, target: TargetModel) -> None:
        if target.digest != self.config.target_digest:
            warn(
                f"this explainer was trained for {self.config.target} with other weights than {target.spec} has; "
                "refine its maps, or train one for this model",
                ExplainerWarning,
            )

    def save_pretrained(self, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> Path:
        """Writes weights, config and model card; returns the folder. Half precision halves the size."""
        folder = Path(folder)
        state = {name: value.detach().cpu().to(dtype).contiguous() for name, value in self.state_dict().items()}
        weights = save(state)
        config = {**asdict(self.config), CHECKSUM: hashlib.sha256(weights).hexdigest()}
        config[OWN_CHECKSUM] = _checksum(config)
        content = {
            CARD: model_card(self.config).encode(),
            _NEXT: weights,
            CONFIG: json.dumps(config, indent=1).encode(),
        }
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in content.items():
                write_atomically(folder / name, lambda file, data=data: file.write(data))  # type: ignore[misc]
            (folder / _NEXT).replace(folder / WEIGHTS)
        return folder

    @classmethod
    def from_pretrained(cls, source: str | Path, *, device: str | torch.device = "cpu") -> Self:
        """An explainer from a folder, or from a repository of the Hugging Face hub."""
        folder = Path(source) if Path(source).is_dir() else _download(str(source))
        try:
            found = read_json(folder / CONFIG)
            if not isinstance(found, dict) or found.pop(OWN_CHECKSUM, None) != _checksum(found):
                raise SpecError(f"{CONFIG} is not as it was saved; download it again, or train the explainer again")
            expected = found.pop(CHECKSUM)
            config = _read_config(found)
            weights = load(_read_weights(folder, expected))
        except FileNotFoundError as error:
            raise ModelError(f"{folder} is not an explainer: it has no {Path(str(error.filename)).name}") from None
        except (SpecError, OSError, SafetensorError) as error:
            raise WeightsError(f"the explainer in {folder} cannot be read: {error}") from None
        with torch.device("meta"):  # sizes that do not fit the weights are found before they take any memory
            check_weights(cls(config), weights, str(folder))
        explainer = cls(config)
        load_weights(explainer, {k: v.float() if v.is_floating_point() else v for k, v in weights.items()}, str(folder))
        explainer.source = str(source)
        return explainer.to(device).eval()

    def push_to_hub(self, repository: str, *, private: bool = False) -> str:
        """Uploads the explainer to the Hugging Face hub; returns the address of the commit."""
        import tempfile

        from huggingface_hub import HfApi

        api = HfApi()
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            api.create_repo(repository, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=repository, folder_path=folder))


def universal_config(target: TargetModel, design: Design) -> ExplainerConfig:
    """Of a fresh explainer that reads networks of the target's kind."""
    form = universal.reading_of(target)
    levels = len(universal.STRIDES)
    cohesion = design.cohesion if form == "tokens" else 0.0
    evidence = (universal.MAPS[form],) * levels
    decoder = DecoderConfig((), universal.FACTS, evidence, 3, design.width, design.stride, cohesion)
    return ExplainerConfig(
        target.spec,
        target.digest,
        "none",
        (),
        "facts",
        0,
        decoder,
        "backward",
        form=form,
        revision=design.width if design.revise else 0,
    )


def _vectors_of(target: TargetModel) -> Tensor:
    """One vector (K, D) per class; of a single output that stands for two classes, the first has the opposite one."""
    return target.score.per_class(target.class_vectors.float().T).T


def forward_evidence(features: Tensor, class_vectors: Tensor) -> Tensor:
    """Standardised evidence (B, h, w) for the class at each place: the product of features and class weights."""
    values = torch.einsum("bchw,bc->bhw", features, class_vectors.to(features))
    return standardised_maps(values[:, None])[:, 0]


def against_rivals(weights: Tensor, classes: Tensor, outputs: Tensor) -> Tensor:
    """`w_c - sum over j != c of p_j w_j / (1 - p_c)` (B, D): the direction in which the class's log-odds rise.

    The probability of a class falls where its rivals gain, which its own weights (K, D) do not show.
    """
    others = outputs.float().scatter(1, classes[:, None], -torch.inf)  # (B, K)
    return weights[classes] - others.softmax(dim=1) @ weights


def _shares_probability(target: TargetModel) -> bool:
    """What one class loses, others gain."""
    return len(target.class_vectors) > 1 and target.score.name in ("softmax", "log_softmax")


def _load_encoder(spec: str, target: TargetModel) -> TargetModel:
    """A frozen encoder beside the target: same device, same precision, same input size."""
    refuse_code(spec, "the explainer")  # its config may come from anywhere
    size = target.stated_preprocessing().size
    return load_model(spec, input_size=size, device=target.device, precision=target.precision)


def default_stages(encoder: TargetModel) -> tuple[int, ...]:
    """Four stages: the deepest of a pyramid, or evenly spaced ones of a transformer, up to the last with evidence.

    Behind a class token, the last block's patch tokens reach no output: what they say of a class is worth less.
    """
    count = encoder.cam_stage() + 1
    if encoder.structure().blocks and count >= _LEVELS:
        return tuple(round((i + 1) * count / _LEVELS) - 1 for i in range(_LEVELS))
    return tuple(range(max(0, count - _LEVELS), count))


def model_card(config: ExplainerConfig) -> str:
    """A README that says what the explainer explains and how well."""
    scores = "\n".join(f"- {name}: {value}" for name, value in config.scores.items()) or "- not measured"
    looks = "a forward and a backward pass" if config.evidence == "backward" else "one forward pass"
    references = ", ".join(f"`{one}`" for one in config.training.get("references", ()))
    trained = f" Trained with the references {references}." if references else ""
    return (
        f"---\nlibrary_name: aha-attribution\ntags: [explainability, attribution]\n---\n\n"
        f"# Explainer of `{config.target}`\n\n"
        f"Amortized Hybrid Attribution: which pixels `{config.target}` (weights digest `{config.target_digest}`) "
        f"relies on, in {looks}. Encoder: `{config.encoder}`; class conditioning: {config.conditioning}.{trained}\n\n"
        f"## Measured\n\n{scores}\n\n## Use\n\n```python\nimport aha\n\nmodel = aha.load_model({config.target!r})  "
        f"# the weights of the digest above; weights=FILE if others come by this name\n"
        f"aha.explain(model, 'picture.jpg', \"aha('FOLDER_OR_REPOSITORY')\")\n```\n"
    )


def _checksum(config: Mapping[str, Any]) -> str:
    """Of the values, however the file is laid out."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _read_config(found: Any) -> ExplainerConfig:
    """Strict: unknown, missing and mistaken entries are errors."""
    config = from_json(ExplainerConfig, found)
    if (config.form == "own") != bool(config.stages) or len(config.stages) != len(config.decoder.channels):
        raise SpecError(f"{len(config.stages)} stages do not fit {len(config.decoder.channels)} numbers of channels")
    if config.form == "own" and len(config.decoder.evidence) not in (0, len(config.stages)):
        raise SpecError(f"{len(config.stages)} stages do not fit evidence at {len(config.decoder.evidence)} levels")
    if config.form != "own" and (config.decoder.evidence, config.decoder.class_dim) != (
        (universal.MAPS[config.form],) * len(universal.STRIDES),
        universal.FACTS,
    ):
        raise SpecError("it reads other evidence than this version gives; train it again")
    return config


def _read_weights(folder: Path, expected: object) -> bytes:
    """The file of weights that has the SHA-256 that is expected."""
    candidates = [path for name in (WEIGHTS, _NEXT) if (path := folder / name).is_file()]
    for path in candidates:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() == expected:
            return content
    if not candidates:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / WEIGHTS))
    raise SpecError(f"{WEIGHTS} is damaged, or not the file that {CONFIG} was saved with; download both again")


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=[WEIGHTS, CONFIG, CARD]))
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"no explainer at {repository}: there is no such folder, and from the hub: {reason}"
        ) from error
