"""The explorer: a small ASGI application over the public interface, and a page that needs no build step.

jobs, watching       work that waits, runs, reports progress and can be cancelled; one worker per model
store, pictures      what is kept on disk under content keys; pictures that visitors may open
policy, served       which texts a visitor may name; models on offer
payloads             the types of what the store keeps
workbench, records   what all questions need: models, pictures, jobs, and results under content keys
questions/           classes, maps, curves, refinements, contrasts, changes and paintings, one file for each
bundles, runs        downloads; finished evaluations to browse
guard, requests      access: hosts, tokens, limits; bodies read with care
routes/, app         the addresses by purpose, and every error as one line
serving              `aha serve`
"""
