"""What can be asked about a picture: each question is a job, each answer a record under its content key."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from aha.api import explain
from aha.core.disk import result_key
from aha.core.registry import nearest_names
from aha.data.batches import Batch
from aha.data.targets import top_classes
from aha.drawing.colours import class_colours
from aha.errors import AhaError, SpecError, TargetError, UnknownName
from aha.learned.library import explainer_of, load_explainer
from aha.learned.refinement import refined_maps
from aha.methods import Method
from aha.methods.aha import AHA
from aha.methods.var import Var
from aha.metrics import Case, Sample
from aha.metrics.curves import AVERAGE
from aha.metrics.ins_del import InsDel
from aha.perturb.perturbation import step_counts
from aha.perturb.references import Black, Blur, Mean, Reference
from aha.results.cards import Curves, average_curves, reference_curves
from aha.web.costs import Costs
from aha.web.jobs import Job, Jobs
from aha.web.pictures import Pictures
from aha.web.policy import allowed_reference
from aha.web.records import SEED, map_record, packed, unit_of
from aha.web.served import Served
from aha.web.store import Store
from aha.web.watching import watch

TOP = 10
STEPS, MOST_STEPS = 20, 64
COARSE_STEPS = 5  # of the curves that come first; their points are points of the fine ones too
MOST_REFERENCES = 4
ROUNDS = 5
MOST_CLASSES = 8
MOST_METHODS = 12
STANDARD = (Black(), Mean(), Blur())
# Places in the queue: what is waited for with the eyes on it, maps (cheap ones first, all below 2), curves.
QUICK, MAPS, COARSE_CURVES, FINE_CURVES = 0, 1, 2, 3


class Workbench:
    """Models, pictures, jobs and results together."""

    def __init__(self, served: Sequence[Served], pictures: Pictures, store: Store, jobs: Jobs) -> None:
        self.served = {one.name: one for one in served}
        self.pictures, self.store, self.jobs = pictures, store, jobs
        self.costs = Costs()
        self._identities: dict[str, str] = {}
        for one in served:
            one.model.structure()  # found now, once, so that checks of later requests never run the model
            _ = one.model.num_classes
            self._identities[one.name] = result_key(*one.identity)
            watch(one.model)

    def model(self, name: str) -> Served:
        """The model of this name, on offer here.

        Raises:
            UnknownName: It is not; models are loaded at the start only.
        """
        if name not in self.served:
            hints = nearest_names(name, self.served) or list(self.served)
            raise UnknownName(f"the explorer has no model {name[:80]!r}; it has {', '.join(hints)}")
        return self.served[name]

    # The questions

    def ask_classes(self, owner: str, picture: str, model: str) -> dict[str, Any]:
        """The model's best classes."""
        served = self.model(model)
        self.pictures.record(picture)
        key = self.key_of(served, "classes", picture, TOP)

        def work(_job: Job) -> None:
            chosen, batch = served.model, self.pictures.batch(picture, served.model)
            outputs = chosen.outputs(batch.inputs)
            classes = top_classes(outputs, min(TOP, chosen.num_classes), chosen.num_classes)[0]
            scores = chosen.score(outputs.expand(len(classes), -1), classes)
            found = [served.scored_class(int(c), float(s)) for c, s in zip(classes, scores, strict=True)]
            self.store.put("results", key, {"kind": "classes", "picture": picture, "model": model, "classes": found})

        return self.ask(key, "classes", served, work, owner, QUICK)

    def ask_map(self, owner: str, picture: str, model: str, method: str, target: int) -> dict[str, Any]:
        """One method's map for one class."""
        served = self.model(model)
        chosen = served.method(method)
        self.check(picture, served, [target])
        key = self._map_key(served, picture, chosen, target)

        def work(job: Job) -> None:
            batch = self.pictures.batch(picture, served.model)
            found = explain(served.model, batch, chosen, target, seed=SEED, progress=job.report)
            self.costs.learn(served, chosen, job.images)
            self._put_map(
                served, picture, chosen, target, found.maps[0], score=float(found.scores[0]), seconds=found.seconds
            )

        return self.ask(key, str(chosen), served, work, owner, self._place(served, chosen))

    def ask_maps(self, owner: str, picture: str, model: str, methods: Sequence[str], target: int) -> dict[str, Any]:
        """Several methods' maps, cheap ones first; one answer for each, in their order: a state, or why not."""
        if not 1 <= len(methods) <= MOST_METHODS:
            raise SpecError(f"name 1 to {MOST_METHODS} methods")
        served = self.model(model)
        self.check(picture, served, [target])
        answers: dict[str, dict[str, Any]] = {}
        costs: dict[str, int] = {}
        for text in methods:
            try:
                costs[text] = self.costs.of(served, served.method(text))
            except AhaError as error:
                answers[text] = _refusal(error)
        for text in sorted(costs, key=costs.__getitem__):  # the worker takes the first of them at once
            try:
                answers[text] = self.ask_map(owner, picture, model, text, target)
            except AhaError as error:
                answers[text] = _refusal(error)
        return {"status": "done", "answers": [{"method": text, **answers[text]} for text in methods]}

    def ask_curves(self, owner: str, key_of_map: str, references: Sequence[str], steps: int = STEPS) -> dict[str, Any]:
        """Deletion and insertion curves of a map that was made before."""
        record = self._map(key_of_map)
        served = self.model(record["model"])
        protocol = curve_protocol([allowed_reference(text) for text in references], steps)
        key = self._curves_key(key_of_map, protocol)

        def work(job: Job) -> None:
            values = torch.from_numpy(self.store.array(key_of_map, "values"))
            sample = self.sample(served, record["picture"])
            self._put_curves(job, key_of_map, record, sample, values, protocol)

        place = COARSE_CURVES if steps <= COARSE_STEPS else FINE_CURVES
        return self.ask(key, f"curves of {record['method']}", served, work, owner, place)

    def ask_refinement(
        self, owner: str, picture: str, model: str, target: int, rounds: int = ROUNDS, explainer: str = ""
    ) -> dict[str, Any]:
        """AHA's maps after 0, 1, ..., `rounds` gradient steps, each with its curves; they are kept as ordinary maps."""
        served = self.model(model)
        self.check(picture, served, [target])
        if not 1 <= rounds <= ROUNDS:
            raise SpecError(f"refinement goes from 1 to {ROUNDS} steps, not {rounds}")
        default = served.explainers[0].explainer if served.explainers else ""
        base = AHA(explainer=explainer or default)
        served.method(str(replace(base, refine=rounds)))
        protocol = curve_protocol([allowed_reference(text) for text in ("black", "mean", "blur")], STEPS)
        learned = base.fingerprint(served.model)
        key = self.key_of(served, "refinement", picture, learned, target, rounds, protocol.in_full())

        def work(job: Job) -> None:
            chosen, sample = served.model, self.sample(served, picture)
            found = load_explainer(base.explainer, chosen.device) if base.explainer else explainer_of(chosen)
            inputs, classes = sample.inputs[None], torch.tensor([target], device=chosen.device)
            job.report(0.0)  # in steps: the loops inside, which would tell their own share, keep silent then
            before = time.perf_counter()
            score = float(chosen.scores(inputs, classes))
            for step, (maps, losses) in enumerate(refined_maps(found, chosen, inputs, classes, rounds)):
                job.checkpoint()
                seconds = time.perf_counter() - before
                values = maps[0].cpu()
                method = replace(base, refine=step)
                own = self._put_map(served, picture, method, target, values, score=score, seconds=seconds)
                curves = self._put_curves(job, own, self._map(own), sample, values, protocol)
                job.parts.append({"step": step, "map": own, "curves": curves, "loss": float(losses[0])})
                job.report((step + 1) / (rounds + 1))
            record = {"kind": "refinement", "picture": picture, "model": model, "target": target, "steps": job.parts}
            self.store.put("results", key, record)

        return self.ask(key, f"refinement of {base}", served, work, owner, self._place(served, base))

    def ask_contrast(self, owner: str, picture: str, model: str, method: str, classes: Sequence[int]) -> dict[str, Any]:
        """How several classes share the picture (VAR); the first of them is the one that is explained."""
        served = self.model(model)
        inner = served.method(method)
        if isinstance(inner, Var):
            inner = inner.inner
        if not 2 <= len(set(classes)) == len(classes) <= MOST_CLASSES:
            raise TargetError(f"compare 2 to {MOST_CLASSES} different classes")
        self.check(picture, served, classes)
        chosen = Var(inner, classes=tuple(classes))
        key = self.key_of(served, "contrast", picture, chosen.fingerprint(served.model), classes[0])

        def work(job: Job) -> None:
            batch = self.pictures.batch(picture, served.model)
            explanation = explain(served.model, batch, chosen, classes[0], seed=SEED, progress=job.report)
            (found,) = explanation.distribution
            won = torch.stack([found.discriminative(index) for index in range(len(found.classes))])
            outputs = served.model.outputs(batch.inputs)
            indices = torch.tensor(found.classes)
            scores = served.model.score(outputs.expand(len(indices), -1), indices)
            arrays = {"maps": found.maps.numpy(), "shares": found.shares.numpy(), "won": won.numpy()}
            record = {
                "kind": "contrast",
                "picture": picture,
                "model": model,
                "method": str(chosen),
                "classes": [served.scored_class(c, float(s)) for c, s in zip(found.classes, scores, strict=True)],
                "colours": class_colours(len(found.classes)),
                "height": won.shape[1],
                "width": won.shape[2],
                "units": {name: unit_of(arrays[name]) for name in ("maps", "won")},
            }
            self.store.put("results", key, record, packed(arrays))

        return self.ask(key, str(chosen), served, work, owner, self._place(served, chosen))

    # Answers

    def ask(
        self, key: str, kind: str, served: Served, work: Callable[[Job], None], owner: str, priority: float
    ) -> dict[str, Any]:
        """The stored answer, or the job that finds it."""
        known = self.store.find("results", key)
        if known is not None:
            return {"key": key, "status": "done", "result": known}
        return self.state(self.jobs.submit(key, kind, served.name, work, owner=owner, priority=priority))

    def state(self, job: Job) -> dict[str, Any]:
        """A job for the page, with its result once there is one."""
        known = self.store.find("results", job.key) if job.status == "done" else None
        return {**job.as_dict(), "ahead": self.jobs.ahead_of(job), **({"result": known} if known else {})}

    def _put_map(
        self, served: Served, picture: str, method: Method, target: int, values: Tensor, *, score: float, seconds: float
    ) -> str:
        key = self._map_key(served, picture, method, target)
        record = {
            "kind": "map",
            "key": key,
            "picture": picture,
            "model": served.name,
            "method": str(method),
            "target": target,
            "label": served.model.class_name(target),
            "score": score,
            "seconds": seconds,
            **map_record(values),
        }
        self.store.put("results", key, record, packed({"values": values.numpy()}))
        return key

    def _put_curves(
        self, job: Job, key_of_map: str, record: Mapping[str, Any], sample: Sample, values: Tensor, protocol: InsDel
    ) -> str:
        key = self._curves_key(key_of_map, protocol)
        job.checkpoint()
        chosen = sample.model
        case = Case(sample, record["target"], values.to(chosen.device), record["method"], seed=SEED)
        found = self._sharpened(case, key_of_map, protocol)
        found[AVERAGE] = average_curves(list(found.values()))
        curves = {
            "kind": "curves",
            "key": key,
            "map": key_of_map,
            "protocol": str(protocol),
            "score": chosen.score.name,
            "is_probability": chosen.score.is_probability,
            "references": {name: _curves_as_dict(curve) for name, curve in found.items()},
        }
        self.store.put("results", key, curves)
        return key

    def _sharpened(self, case: Case, key_of_map: str, protocol: InsDel) -> dict[str, Curves]:
        """The curves by reference; the points that coarse curves of the same map have already are not asked again."""
        known = self._coarse(key_of_map, protocol)
        if not known or protocol.steps == "adaptive":
            return reference_curves(case, protocol)
        coarse, fine = (set(step_counts(case.num_pixels, steps)) for steps in (COARSE_STEPS, protocol.steps))
        missing = tuple(count / case.num_pixels for count in sorted(fine - coarse))
        between = reference_curves(case, replace(protocol, fractions=missing))
        return {name: known[name].joined(curves) for name, curves in between.items()}

    def _coarse(self, key_of_map: str, protocol: InsDel) -> dict[str, Curves]:
        """Coarse curves for every reference of a protocol, if a job found them before: one for all, or one for each."""
        if protocol.steps == "adaptive" or protocol.steps % COARSE_STEPS or protocol.steps == COARSE_STEPS:
            return {}
        found = {}
        for reference in protocol.references:
            for references in (STANDARD, (reference,)):
                key = self._curves_key(key_of_map, replace(protocol, steps=COARSE_STEPS, references=references))
                record = self.store.find("results", key)
                if record is not None and str(reference) in record["references"]:
                    found[str(reference)] = _curves_from_dict(record["references"][str(reference)])
        return found if len(found) == len(protocol.references) else {}

    # Parts of them

    def _place(self, served: Served, method: Method) -> float:
        """The place of a map in the queue: between `MAPS` and the first curves, dear ones later."""
        cost = self.costs.of(served, method)
        return MAPS + cost / (cost + 1000.0)

    def _map(self, key: str) -> dict[str, Any]:
        record = self.store.get("results", key)
        if record.get("kind") != "map":
            raise SpecError(f"{key} is not a map")
        return record

    def sample(self, served: Served, picture: str) -> Sample:
        """The picture as what metrics look at."""
        batch: Batch = self.pictures.batch(picture, served.model)
        return Sample(served.model, batch.subjects[0].name, batch.inputs[0].to(served.model.device))

    def check(self, picture: str, served: Served, classes: Sequence[int]) -> None:
        """Refuses pictures that are not here, and classes that the model has not."""
        self.pictures.record(picture)
        served.model.check_classes(classes)

    def key_of(self, served: Served, *parts: object) -> str:
        """The key of a result that depends on a model and on these parts."""
        return result_key(self._identities[served.name], *parts)

    def _map_key(self, served: Served, picture: str, method: Method, target: int) -> str:
        # By all it depends on: results outlive neither a change of defaults nor the training of another explainer.
        return self.key_of(served, "map", picture, method.fingerprint(served.model), target, SEED)

    def _curves_key(self, key_of_map: str, protocol: InsDel) -> str:
        return result_key("curves", key_of_map, protocol.in_full())


def curve_protocol(references: Sequence[Reference], steps: int) -> InsDel:
    """Deletion and Insertion with these references, within reason."""
    if not 1 <= len(set(references)) == len(references) <= MOST_REFERENCES:
        raise SpecError(f"name 1 to {MOST_REFERENCES} different references")
    if not 2 <= steps <= MOST_STEPS:
        raise SpecError(f"curves have 2 to {MOST_STEPS} steps, not {steps}")
    return InsDel(steps=steps, references=tuple(references))


def _refusal(error: AhaError) -> dict[str, Any]:
    return {"error": " ".join(str(error).split())}


def _curves_from_dict(values: Mapping[str, Any]) -> Curves:
    return Curves(*(tuple(values[name]) for name in ("fractions", "deletion", "insertion")))


def _curves_as_dict(curves: Curves) -> dict[str, Any]:
    return {**asdict(curves), "ins_del": curves.ins_del}
