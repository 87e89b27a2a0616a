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
from aha.errors import SpecError, TargetError, UnknownName
from aha.learned.library import explainer_of, load_explainer
from aha.learned.refinement import refined_maps
from aha.methods import Method
from aha.methods.aha import AHA
from aha.methods.var import Var
from aha.metrics import Case, Sample
from aha.metrics.curves import AVERAGE
from aha.metrics.ins_del import InsDel
from aha.perturb.references import Reference
from aha.results.cards import Curves, average_curves, reference_curves
from aha.web.jobs import Job, Jobs
from aha.web.pictures import Pictures
from aha.web.policy import allowed_reference
from aha.web.records import SEED, map_record, packed, unit_of
from aha.web.served import Served
from aha.web.store import Store
from aha.web.watching import watch

TOP = 10
STEPS, MOST_STEPS = 20, 64
MOST_REFERENCES = 4
ROUNDS = 5
MOST_CLASSES = 8
_QUICK, _NORMAL, _SLOW = 0, 1, 2  # places in the queue


class Workbench:
    """Models, pictures, jobs and results together."""

    def __init__(self, served: Sequence[Served], pictures: Pictures, store: Store, jobs: Jobs) -> None:
        self.served = {one.name: one for one in served}
        self.pictures, self.store, self.jobs = pictures, store, jobs
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
        key = self._key(served, "classes", picture, TOP)

        def work(_job: Job) -> None:
            chosen, batch = served.model, self.pictures.batch(picture, served.model)
            outputs = chosen.outputs(batch.inputs)
            classes = top_classes(outputs, min(TOP, chosen.num_classes), chosen.num_classes)[0]
            scores = chosen.score(outputs.expand(len(classes), -1), classes)
            found = [served.scored_class(int(c), float(s)) for c, s in zip(classes, scores, strict=True)]
            self.store.put("results", key, {"kind": "classes", "picture": picture, "model": model, "classes": found})

        return self._ask(key, "classes", served, work, owner, _QUICK)

    def ask_map(self, owner: str, picture: str, model: str, method: str, target: int) -> dict[str, Any]:
        """One method's map for one class."""
        served = self.model(model)
        chosen = served.method(method)
        self._check(picture, served, [target])
        key = self._map_key(served, picture, chosen, target)

        def work(job: Job) -> None:
            batch = self.pictures.batch(picture, served.model)
            found = explain(served.model, batch, chosen, target, seed=SEED, progress=job.report)
            self._put_map(
                served, picture, chosen, target, found.maps[0], score=float(found.scores[0]), seconds=found.seconds
            )

        return self._ask(key, str(chosen), served, work, owner, _NORMAL)

    def ask_curves(self, owner: str, key_of_map: str, references: Sequence[str], steps: int = STEPS) -> dict[str, Any]:
        """Deletion and insertion curves of a map that was made before."""
        record = self._map(key_of_map)
        served = self.model(record["model"])
        protocol = curve_protocol([allowed_reference(text) for text in references], steps)
        key = self._curves_key(key_of_map, protocol)

        def work(job: Job) -> None:
            values = torch.from_numpy(self.store.array(key_of_map, "values"))
            sample = self._sample(served, record["picture"])
            self._put_curves(job, key_of_map, record, sample, values, protocol)

        return self._ask(key, f"curves of {record['method']}", served, work, owner, _SLOW)

    def ask_refinement(
        self, owner: str, picture: str, model: str, target: int, rounds: int = ROUNDS, explainer: str = ""
    ) -> dict[str, Any]:
        """AHA's maps after 0, 1, ..., `rounds` gradient steps, each with its curves; they are kept as ordinary maps."""
        served = self.model(model)
        self._check(picture, served, [target])
        if not 1 <= rounds <= ROUNDS:
            raise SpecError(f"refinement goes from 1 to {ROUNDS} steps, not {rounds}")
        default = served.explainers[0].explainer if served.explainers else ""
        base = AHA(explainer=explainer or default)
        served.method(str(replace(base, refine=rounds)))
        protocol = curve_protocol([allowed_reference(text) for text in ("black", "mean", "blur")], STEPS)
        learned = base.fingerprint(served.model)
        key = self._key(served, "refinement", picture, learned, target, rounds, protocol.in_full())

        def work(job: Job) -> None:
            chosen, sample = served.model, self._sample(served, picture)
            found = load_explainer(base.explainer, chosen.device) if base.explainer else explainer_of(chosen)
            inputs, classes = sample.inputs[None], torch.tensor([target], device=chosen.device)
            steps, before = [], time.perf_counter()
            score = float(chosen.scores(inputs, classes))
            for step, (maps, losses) in enumerate(refined_maps(found, chosen, inputs, classes, rounds)):
                job.checkpoint()
                seconds = time.perf_counter() - before
                values = maps[0].cpu()
                method = replace(base, refine=step)
                own = self._put_map(served, picture, method, target, values, score=score, seconds=seconds)
                curves = self._put_curves(job, own, self._map(own), sample, values, protocol)
                steps.append({"step": step, "map": own, "curves": curves, "loss": float(losses[0])})
                job.done = (step + 1) / (rounds + 1)
            record = {"kind": "refinement", "picture": picture, "model": model, "target": target, "steps": steps}
            self.store.put("results", key, record)

        return self._ask(key, f"refinement of {base}", served, work, owner, _SLOW)

    def ask_contrast(self, owner: str, picture: str, model: str, method: str, classes: Sequence[int]) -> dict[str, Any]:
        """How several classes share the picture (VAR); the first of them is the one that is explained."""
        served = self.model(model)
        inner = served.method(method)
        if isinstance(inner, Var):
            inner = inner.inner
        if not 2 <= len(set(classes)) == len(classes) <= MOST_CLASSES:
            raise TargetError(f"compare 2 to {MOST_CLASSES} different classes")
        self._check(picture, served, classes)
        chosen = Var(inner, classes=tuple(classes))
        key = self._key(served, "contrast", picture, chosen.fingerprint(served.model), classes[0])

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

        return self._ask(key, str(chosen), served, work, owner, _NORMAL)

    # Answers

    def _ask(
        self, key: str, kind: str, served: Served, work: Callable[[Job], None], owner: str, priority: int
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
        found = reference_curves(case, protocol)
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

    # Parts of them

    def _map(self, key: str) -> dict[str, Any]:
        record = self.store.get("results", key)
        if record.get("kind") != "map":
            raise SpecError(f"{key} is not a map")
        return record

    def _sample(self, served: Served, picture: str) -> Sample:
        batch: Batch = self.pictures.batch(picture, served.model)
        return Sample(served.model, batch.subjects[0].name, batch.inputs[0].to(served.model.device))

    def _check(self, picture: str, served: Served, classes: Sequence[int]) -> None:
        self.pictures.record(picture)
        served.model.check_classes(classes)

    def _key(self, served: Served, *parts: object) -> str:
        return result_key(self._identities[served.name], *parts)

    def _map_key(self, served: Served, picture: str, method: Method, target: int) -> str:
        # By all it depends on: results outlive neither a change of defaults nor the training of another explainer.
        return self._key(served, "map", picture, method.fingerprint(served.model), target, SEED)

    def _curves_key(self, key_of_map: str, protocol: InsDel) -> str:
        return result_key("curves", key_of_map, protocol.in_full())


def curve_protocol(references: Sequence[Reference], steps: int) -> InsDel:
    """Deletion and Insertion with these references, within reason."""
    if not 1 <= len(set(references)) == len(references) <= MOST_REFERENCES:
        raise SpecError(f"name 1 to {MOST_REFERENCES} different references")
    if not 2 <= steps <= MOST_STEPS:
        raise SpecError(f"curves have 2 to {MOST_STEPS} steps, not {steps}")
    return InsDel(steps=steps, references=tuple(references))


def _curves_as_dict(curves: Curves) -> dict[str, Any]:
    return {**asdict(curves), "ins_del": curves.ins_del}
