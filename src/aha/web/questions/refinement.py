"""AHA refined step by step, each step with its curves."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from aha.core.progress import in_parts, part
from aha.errors import SpecError
from aha.learned.library import explainer_of
from aha.learned.refinement import RefinementConfig, Refining
from aha.methods.aha import AHA
from aha.web.jobs import Job
from aha.web.payloads import RefinementResult, RefinementStep, State
from aha.web.policy import allowed_reference
from aha.web.questions.curves import STEPS, curve_protocol, put_curves
from aha.web.questions.maps import known_map, map_key, put_map
from aha.web.workbench import Workbench

ROUNDS = 5


def ask_refinement(
    bench: Workbench, owner: str, picture: str, model: str, target: int, rounds: int = ROUNDS, explainer: str = ""
) -> State:
    """AHA's maps after 0, 1, ..., `rounds` gradient steps, each with its curves; they are kept as ordinary maps."""
    served = bench.model(model)
    bench.check(picture, served, [target])
    if not 1 <= rounds <= ROUNDS:
        raise SpecError(f"refinement goes from 1 to {ROUNDS} steps, not {rounds}")
    default = served.explainers[0].explainer if served.explainers else ""
    base = AHA(explainer=explainer or default)
    served.method(str(replace(base, refine=rounds)))
    protocol = curve_protocol([allowed_reference(text) for text in ("black", "mean", "blur")], STEPS)
    learned = base.fingerprint(served.model)
    # How long a step and its curves take, in forward passes; a backward pass takes about twice as long as one.
    config = RefinementConfig.of(explainer_of(served.model, base.explainer))
    drawing, measuring = 3 * config.cost, 2 * STEPS * len(protocol.references)
    both = drawing + measuring
    key = bench.key_of(served, "refinement", picture, learned, target, rounds, protocol.in_full())

    def work(job: Job) -> None:
        chosen, sample = served.model, bench.sample(served, picture)
        found = explainer_of(chosen, base.explainer)
        inputs, classes = sample.inputs[None], torch.tensor([target], device=chosen.device)
        before = time.perf_counter()
        score = float(chosen.scores(inputs, classes))
        refining = Refining.start(found, chosen, inputs, classes, config).course(rounds)
        for step in in_parts(range(rounds + 1)):
            with part(0, drawing, both):
                maps, losses = next(refining)
            seconds = time.perf_counter() - before
            values = (found.calibrated(maps) if base.calibrated else maps)[0].cpu()  # as the method itself gives them
            method = replace(base, refine=step)
            own = map_key(bench, served, picture, method, target)
            if bench.store.find("results", own) is None:
                put_map(bench, served, picture, own, method, target, chosen.class_name(target), values, score, seconds)
            # The map can be looked at while it is being measured, which takes longer than the step itself.
            found_so_far: RefinementStep = {"step": step, "map": own, "curves": None, "loss": float(losses[0])}
            job.parts.append(found_so_far)
            with part(drawing, both, both):
                found_so_far["curves"] = put_curves(bench, own, known_map(bench, own), sample, values, protocol)
        record: RefinementResult = {
            "kind": "refinement",
            "picture": picture,
            "model": bench.identity_of(served),
            "target": target,
            "steps": job.parts,
        }
        bench.store.put("results", key, record)

    return bench.ask(key, f"refinement of {base}", served, work, owner, bench.place_of(served, base))
